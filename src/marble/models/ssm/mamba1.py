"""The Mamba-1 mixer, with the second branches that MambaMIL gives it and the 2-D scan of 2DMamba.

Letters: T tokens of width w; d = expand * w channels; n states per channel; R = ceil(w / 16) numbers for the step dt.
Parameters keep the names of the original (`A_log`, `conv1d`, ..., those of the second branch with `_b`).
"""

from __future__ import annotations

from math import ceil, log
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, silu, softplus
from torch.utils.checkpoint import checkpoint

from marble.models.ssm.scan import selective_scan
from marble.models.ssm.scan2d import selective_scan_2d

DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 0.1, 1e-4
#: tokens from which a branch is recomputed in the backward pass: it would keep 36 KB per token at the paper's size
RECOMPUTE_FROM = 8192


class Mamba1Mixer(nn.Module):
    """x, z = W_in h; x = silu(causal conv x); y = scan(x) * silu(z); W_out y.

    Args:
        width: of the tokens, in and out.
        state: states per channel.
        kernel: taps of the causal convolution.
        expand: channels per unit of width.
        second: order in which a second branch with its own convolution and scan reads the tokens: "flip" from the
            last to the first (bidirectional), a number for every `second`-th token in turn (sequence reordering);
            None for no such branch.
    """

    def __init__(
        self,
        width: int,
        state: int = 16,
        kernel: int = 4,
        expand: int = 2,
        second: Literal["flip"] | int | None = None,
    ) -> None:
        super().__init__()
        d, dt_rank = expand * width, ceil(width / 16)
        self.state, self.dt_rank, self.second = state, dt_rank, second
        self.in_proj = nn.Linear(width, 2 * d, bias=False)
        self.out_proj = nn.Linear(d, width, bias=False)
        self.conv1d = nn.Conv1d(d, d, kernel, groups=d)
        self.x_proj = nn.Linear(d, dt_rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, d)
        self.A_log = nn.Parameter(initial_a_log(d, state))
        self.D = nn.Parameter(torch.ones(d))
        initialise_dt(self.dt_proj)
        if second is not None:
            self.conv1d_b = nn.Conv1d(d, d, kernel, groups=d)
            self.x_proj_b = nn.Linear(d, dt_rank + 2 * state, bias=False)
            self.dt_proj_b = nn.Linear(dt_rank, d)
            self.A_b_log = nn.Parameter(initial_a_log(d, state))
            self.D_b = nn.Parameter(torch.ones(d))
            initialise_dt(self.dt_proj_b)

    def forward(self, h: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """(T, w) tokens -> (T, w); with `grid` (H, W), the tokens are its cells row by row and the scan is 2-D."""
        x, z = self.in_proj(h).chunk(2, dim=1)  # (T, d) each
        y = self._kept_small(x, self.conv1d, self.x_proj, self.dt_proj, self.A_log, self.D, grid)
        # The gate is the same for both branches: they are added before it, and only x is put in another order.
        if self.second == "flip":
            y = y + self._second_branch(x.flip(0)).flip(0)
        elif isinstance(self.second, int):
            y = y + deinterleave(self._second_branch(interleave(x, self.second)), self.second)[: len(h)]
        mixed: Tensor = self.out_proj(gated(y, z))
        return mixed

    def _second_branch(self, x: Tensor) -> Tensor:
        return self._kept_small(x, self.conv1d_b, self.x_proj_b, self.dt_proj_b, self.A_b_log, self.D_b, None)

    def _kept_small(self, x: Tensor, *branch: Any) -> Tensor:
        """A branch, of which a long bag keeps nothing for the backward pass but its input: there it is run again."""
        if len(x) < RECOMPUTE_FROM or not torch.is_grad_enabled():
            return self._branch(x, *branch)
        y: Tensor = checkpoint(self._branch, x, *branch, use_reentrant=False, preserve_rng_state=False)
        return y

    def _branch(
        self,
        x: Tensor,
        conv: nn.Conv1d,
        x_proj: nn.Linear,
        dt_proj: nn.Linear,
        A_log: Tensor,
        D: Tensor,
        grid: tuple[int, int] | None,
    ) -> Tensor:
        """(T, d) projected tokens -> (T, d), not gated yet."""
        x = silu(causal_conv(x, conv))
        dt, B, C = x_proj(x).split([self.dt_rank, self.state, self.state], dim=1)
        dt = softplus(dt_proj(dt))  # (T, d)
        A = -torch.exp(A_log)  # (d, n)
        x, dt, B, C = (v.to(A.dtype) for v in (x, dt, B, C))  # only projections are narrow, where any are
        if grid is None:
            return selective_scan(x, dt, A, B, C, D)
        x, dt, B, C = (v.unflatten(0, grid) for v in (x, dt, B, C))  # (H, W, d or n)
        return selective_scan_2d(x, dt, A, B, C, D).flatten(0, 1)


class _Gated(torch.autograd.Function):
    """y * silu(z); silu(z) is not kept but computed again, for a fresh page costs more than its arithmetic."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(y, z)
        return silu(z).mul_(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        y, z = ctx.saved_tensors
        return silu(z).mul_(gradient), torch.ops.aten.silu_backward(gradient * y, z)


def gated(y: Tensor, z: Tensor) -> Tensor:
    """(T, d) scanned channels times the silu of their gate."""
    z = z.to(y.dtype)  # projections may be narrow, scans are not
    product: Tensor = _Gated.apply(y, z)  # type: ignore[no-untyped-call]
    return product


def causal_conv(x: Tensor, conv: nn.Conv1d) -> Tensor:
    """Depthwise convolution over (T, d) whose last tap is the token itself, as shifted multiply-adds."""
    assert conv.bias is not None
    taps = conv.weight[:, 0].T  # (kernel, d)
    padded = pad(x, (0, 0, len(taps) - 1, 0))
    y = torch.addcmul(conv.bias, padded[: len(x)], taps[0])
    for k in range(1, len(taps)):
        y.addcmul_(padded[k : k + len(x)], taps[k])  # in place: fresh pages cost more than arithmetic
    return y


def interleave(x: Tensor, rate: int) -> Tensor:
    """Every `rate`-th token from the first, then from the second, ...: (T, c) -> (K rate, c), K = ceil(T / rate).

    Token k rate + w goes to place w K + k; places without a token are zero.
    """
    length = ceil(len(x) / rate)
    padded = pad(x, (0, 0, 0, length * rate - len(x)))
    return padded.view(length, rate, -1).transpose(0, 1).flatten(0, 1)


def deinterleave(x: Tensor, rate: int) -> Tensor:
    """Undo `interleave`; the tokens are followed by what became of its zeros."""
    return x.view(rate, len(x) // rate, -1).transpose(0, 1).flatten(0, 1)


def initial_a_log(channels: int, state: int) -> Tensor:
    """(d, n) log(1..n) in every channel."""
    return torch.log(torch.arange(1, state + 1, dtype=torch.get_default_dtype())).repeat(channels, 1)


def initialise_dt(dt_proj: nn.Linear) -> None:
    """Draw biases so that softplus gives steps log-uniform between DT_MIN and DT_MAX, and weights that keep them so."""
    nn.init.uniform_(dt_proj.weight, -(dt_proj.in_features**-0.5), dt_proj.in_features**-0.5)
    dt = torch.exp(torch.empty(dt_proj.out_features).uniform_(log(DT_MIN), log(DT_MAX))).clamp(min=DT_FLOOR)
    with torch.no_grad():
        dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus


def xavier(module: nn.Module) -> None:
    """Xavier-normal weights and zero biases for every linear layer inside `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
