"""The segments of `ssd_fast` and `ssd_backward` with the CUDA kernels of the package mamba_ssm.

Only its scan is called (`mamba_chunk_scan_combined`); convolution, gate and norm are ours, so the package causal_conv1d
is not needed. Its gradients are autograd's, taken segment by segment. The kernels count elements in 32 bits and go
silently wrong beyond; segments are far shorter than that, and a longer one is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import silu

from marble.models.ssm.ssd_backward import SegmentGradient
from marble.models.ssm.ssd_fast import SegmentScan, convolve
from marble.models.ssm.ssd_reference import recurrence, softplus

#: x (T, H, P), dt (T, H), A (H,), B and C (T, G, N), D (H,), state (H, P, N) -> y (T, H, P), state
Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
#: elements the kernels can count
MOST_ELEMENTS = 2**31 - 1
#: of the largest number, that the kernels may be off by in the self-test; they multiply in TF32
TOLERANCE = 5e-3


def why_not(device: torch.device, dtype: torch.dtype = torch.float32) -> str | None:
    """Why the kernels cannot run there; None if they can, and gave the right numbers when they were tried."""
    if dtype != torch.float32:  # wider numbers would come back as if they were, with the digits of float32
        return f"takes float32, not {dtype}"
    if not torch.cuda.is_available():
        return "needs a CUDA device"
    if device.type != "cuda":
        return f"tokens are on {device.type}"
    if find_spec("mamba_ssm") is None:
        return "needs the package: pip install mamba-ssm"
    return self_test(str(device))


@functools.cache
def self_test(device: str) -> str | None:
    """What is wrong with the kernels' outputs or gradients on 70 tokens; None if nothing is. Tried once per process."""
    rng = torch.Generator().manual_seed(0)
    T, H, P, G, N = 70, 4, 64, 2, 64
    sizes = ((T, H, P), (T, H), (H,), (T, G, N), (T, G, N), (H,), (H, P, N))
    x, dt, A, B, C, D, state = (torch.randn(size, generator=rng) for size in sizes)
    inputs = (x, softplus(dt) / 10, -softplus(A), B, C, D, state)
    try:
        found = _outputs_and_gradients(kernel_scan, [value.to(device) for value in inputs])
    except Exception as error:  # whatever an installation does, there is another path
        return f"the installed mamba_ssm does not run ({type(error).__name__}: {error})"
    expected = _outputs_and_gradients(recurrence, [value.double() for value in inputs])
    worst = max(float((f.cpu() - e).abs().max() / e.abs().max()) for f, e in zip(found, expected, strict=True))
    return None if worst < TOLERANCE else f"the installed mamba_ssm is off by {worst:.1e} on this device"


def _outputs_and_gradients(scan: Scan, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [value.requires_grad_() for value in inputs]
    x, dt, A, B, C, D, state = leaves
    y, last = scan(x, dt, A, B, C, D, state)
    return [y.detach(), last.detach(), *torch.autograd.grad(y.square().sum() + last.square().sum(), leaves)]


def kernel_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The scan of one segment by mamba_ssm's kernels."""
    combined = import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    y, last = combined(
        x[None], dt[None], A, B[None], C[None], chunk_size=256, D=D, initial_states=state[None],
        return_final_states=True,
    )  # fmt: skip
    return y[0], last[0]


class MambaScan(SegmentScan):
    """Forward over the segments of one sequence."""

    def forward(self, rows: Tensor, *, keep: bool = False, overwrite: bool = False) -> Tensor:
        L = len(rows) - self.shape.conv + 1
        if rows.numel() > MOST_ELEMENTS:
            raise RuntimeError(f"mamba_ssm takes at most {MOST_ELEMENTS // rows.shape[1]} tokens at once, got {L}")
        u = self.scratch("u", L, self.shape.convolved)
        act = silu(convolve(self._raw(rows), self.taps, self.conv_bias, u))
        self.dt = softplus(rows[self.shape.conv - 1 :, -self.shape.heads :] + self.dt_bias)
        y, state = self._run(act, self.dt, keep)
        self.state = self._grouped(state)
        self.scratch("y", L, self.shape.inner).copy_(y.detach())
        gate = self._gate(rows)
        gated = gate if overwrite else self.scratch("gated", L, self.shape.inner)
        return torch.mul(silu(gate), y.detach(), out=gated)

    def _run(self, act: Tensor, dt: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """Outputs (L, H*P) and the state (H, P, N) after it; with `keep`, the graph to them stays."""
        shape, L = self.shape, len(act)
        state = self._by_head_first(self.state)
        leaves = [value.detach().requires_grad_(keep) for value in (act, dt, self.A, self.D, state)]
        with torch.set_grad_enabled(keep):
            x, B, C = torch.split(leaves[0], [shape.inner, *[shape.groups * shape.state] * 2], dim=1)
            y, last = kernel_scan(
                x.reshape(L, shape.heads, shape.headdim), leaves[1], leaves[2], B.reshape(L, shape.groups, -1),
                C.reshape(L, shape.groups, -1), leaves[3], leaves[4],
            )  # fmt: skip
        self.kept = (leaves, y, last) if keep else None
        return y.reshape(L, shape.inner), last.detach()

    def _by_head_first(self, state: Tensor) -> Tensor:
        """(G, N, h*P) -> (H, P, N)."""
        grouped = state.reshape(*state.shape[:2], self.heads, self.shape.headdim)  # (G, N, h, P)
        return grouped.permute(0, 2, 3, 1).flatten(0, 1).contiguous()

    def _grouped(self, state: Tensor) -> Tensor:
        """(H, P, N) -> (G, N, h*P)."""
        by_group = state.reshape(self.shape.groups, self.heads, *state.shape[1:])  # (G, h, P, N)
        return by_group.permute(0, 3, 1, 2).flatten(2).contiguous()


class MambaGradient(MambaScan, SegmentGradient):
    """Backward over the segments of one sequence, from the last to the first."""

    def _backward_scan(self, dy: Tensor, d_dt_rows: Tensor) -> None:
        assert self.kept is not None
        leaves, y, last = self.kept
        L = len(dy)
        given = (dy.view_as(y), self._by_head_first(self.d_state))
        d_act, d_dt, d_A, d_D, d_state = torch.autograd.grad((y, last), leaves, given)
        self.scratch("d_act", L, self.shape.convolved).copy_(d_act)
        self.d_A += d_A
        self.d_D += d_D
        self.d_state = self._grouped(d_state)
        d_row = d_dt * -torch.expm1(-self.dt)  # the slope of softplus
        self.d_dt_bias += d_row.sum(0)
        d_dt_rows.copy_(d_row)
        self.kept = None
