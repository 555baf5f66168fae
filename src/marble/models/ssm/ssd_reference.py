"""Mamba-2's selective state space, written to be read: one token after another.

Letters (sizes at d_model 1024 in brackets):

    T  tokens                    P  width of a head [64]         N  size of the state [128]
    H  heads [32]                G  groups that share B, C [1]   K  width of the convolution [4]
    z  gate (T, H*P)             x  input of the scan (T, H, P)  B, C  write and read directions (T, G, N)
    dt step size (T, H) > 0      A  decay rate (H,) < 0          D  skip (H,)           S  state (H, P, N)

The input projection gives one row [z | x | B | C | dt] per token. x, B and C pass a causal depthwise convolution and
SiLU; then

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t + D x_t        out_t = RMSNorm(y_t * silu(z_t))

Every faster path is held against this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad, silu


@dataclass(frozen=True)
class SsdShape:
    """The sizes of one block."""

    heads: int  # H
    headdim: int  # P
    groups: int  # G
    state: int  # N
    conv: int  # K
    eps: float

    @property
    def inner(self) -> int:
        return self.heads * self.headdim

    @property
    def convolved(self) -> int:
        """Channels of x, B and C together."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the row [z | x | B | C | dt]."""
        return self.inner + self.convolved + self.heads

    def parameters(self, d_model: int) -> int:
        """Weights of a block of this shape, projections from and to `d_model` included."""
        both_projections = d_model * (self.projected + self.inner)
        return both_projections + self.convolved * (self.conv + 1) + 3 * self.heads + self.inner


class SsdWeights(NamedTuple):
    """Everything between the two projections."""

    conv_weight: Tensor  # (x|B|C channels, 1, K)
    conv_bias: Tensor  # (x|B|C channels,)
    dt_bias: Tensor  # (H,)
    A_log: Tensor  # (H,)
    D: Tensor  # (H,)
    norm_weight: Tensor  # (H*P,)


def recurrence(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run the recurrence above, from zero or from `start`: y (T, H, P) and the last state (H, P, N)."""
    share = x.shape[1] // B.shape[1]  # heads per group
    S = x.new_zeros(*x.shape[1:], B.shape[2]) if start is None else start  # (H, P, N)
    y = []
    for x_t, dt_t, B_t, C_t in zip(x, dt, B, C):
        B_h, C_h = B_t.repeat_interleave(share, 0), C_t.repeat_interleave(share, 0)  # (H, N)
        S = torch.exp(dt_t * A)[:, None, None] * S + (dt_t[:, None] * x_t)[:, :, None] * B_h[:, None, :]
        y.append((S * C_h[:, None, :]).sum(-1) + D[:, None] * x_t)
    return torch.stack(y) if y else torch.zeros_like(x), S


def softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x), exact everywhere (torch's own turns linear at 20)."""
    return torch.logaddexp(x, torch.zeros_like(x))


def reference_scan(rows: Tensor, weights: SsdWeights, shape: SsdShape) -> tuple[Tensor, Tensor]:
    """Projected rows (T, z|x|B|C|dt) to normalised tokens (T, H*P) and the last state (H, P, N)."""
    T = len(rows)
    z, xBC, dt = torch.split(rows, [shape.inner, shape.convolved, shape.heads], dim=1)
    padded = pad(xBC.t(), (shape.conv - 1, 0))  # zeros before the first token
    xBC = silu(conv1d(padded, weights.conv_weight, weights.conv_bias, groups=shape.convolved)).t()
    x, B, C = torch.split(xBC, [shape.inner, shape.groups * shape.state, shape.groups * shape.state], dim=1)
    y, S = recurrence(
        x.reshape(T, shape.heads, shape.headdim),
        softplus(dt + weights.dt_bias),
        -torch.exp(weights.A_log),
        B.reshape(T, shape.groups, shape.state),
        C.reshape(T, shape.groups, shape.state),
        weights.D,
    )
    gated = (y.reshape(T, -1) * silu(z)).view(T, shape.groups, -1)  # the norm is taken group by group
    normal = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + shape.eps)
    return normal.reshape(T, -1) * weights.norm_weight, S
