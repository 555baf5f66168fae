"""The selective scan of Mamba-1, fast and in little memory: equal to `scan_reference.selective_scan_reference`.

On a CPU the compiled kernel of `scan_native` does the work where there is one; this is the way everywhere else. There
the inner loop takes token after token on a CPU, and on accelerators all tokens of a segment in few launches
(`scan_blocked`).

The recurrence is run as it stands, so nothing can overflow: decays are only ever multiplied, never divided out. What
makes it fast is that everything around its one multiply-add per token is done for a whole segment at once, on a CPU in
buffers small enough for its cache. The backward pass keeps the state at each segment's start and recomputes the rest.

Letters: T tokens, d channels, n states per channel, S tokens per segment. Inside, states are (n, d): channels last,
so that B and C, which all channels share, are scalars of the innermost loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import e, log2
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from marble.models.ssm.scan_blocked import scan_backwards, scan_forwards
from marble.models.ssm.scan_native import NativeSelectiveScan, why_not
from marble.native.library import BACKEND_VARIABLE

#: numbers in one (S, n, d) buffer: the three buffers of a segment stay in the cache
SEGMENT_NUMBERS = 1 << 20
#: the same on accelerators, where launches count: 8,192 tokens of 1,024 channels with 16 states, half a gigabyte
BLOCKED_NUMBERS = 1 << 27
#: e^x is taken as 2^(x log2 e), which costs torch half as much
LOG2_E = log2(e)


def selective_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t h_t + D x_t.

    Args:
        x: (T, d) tokens.
        dt: (T, d) steps, positive.
        A: (d, n) decay rates, negative.
        B: (T, n).
        C: (T, n).
        D: (d,).

    Returns:
        (T, d).
    """
    run: Callable[..., Tensor] = (NativeSelectiveScan if uses_kernel(x) else _SelectiveScan).apply
    y = run(x, dt, A, B, C)
    return torch.addcmul(y, x, D)


def uses_kernel(x: Tensor) -> bool:
    """Whether the compiled kernel scans channels like these (..., d): where it can, unless the environment says not."""
    return os.environ.get(BACKEND_VARIABLE, "auto") in ("auto", "native") and why_not(x) is None


def takes_blocks(x: Tensor) -> bool:
    """Whether the inner loop is that of `scan_blocked`: off the CPU, or where the environment says `batched`."""
    return x.device.type != "cpu" or os.environ.get(BACKEND_VARIABLE) == "batched"


class _SelectiveScan(torch.autograd.Function):
    """C_t h_t, and its derivatives by the adjoint recurrence g_t = C_t gy_t + exp(dt_{t+1} A) g_{t+1}."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        A_T = A.T.contiguous()  # (n, d)
        ctx.blocked = takes_blocks(x)
        segments = _segments(len(x), A.numel(), ctx.blocked)
        scratch = _Scratch(segments, A_T, ctx.blocked)
        starts = A.new_empty(len(segments), *A_T.shape)  # the state each segment starts from
        state = torch.zeros_like(A_T)
        y = torch.empty_like(x)
        for k, at in enumerate(segments):
            starts[k] = state
            _, h = scratch.run(dt[at], dt[at] * x[at], B[at], state)
            y[at] = torch.bmm(C[at, None], h[1:])[:, 0]
            state = h[-1]
        ctx.save_for_backward(x, dt, A_T, B, C, starts)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor, ...]:
        x, dt, A_T, B, C, starts = ctx.saved_tensors
        segments = _segments(len(x), A_T.numel(), ctx.blocked)
        scratch = _Scratch(segments, A_T, ctx.blocked)
        adjoint = torch.empty_like(scratch.decay[1:])
        gx, gdt, gA_T = torch.empty_like(x), torch.empty_like(dt), torch.zeros_like(A_T)
        gB, gC = torch.empty_like(B), torch.empty_like(C)
        carry = torch.zeros_like(A_T)  # exp(dt A) g of the first token after this segment
        for k in reversed(range(len(segments))):
            at = segments[k]
            u = dt[at] * x[at]  # (S, d)
            a, h = scratch.run(dt[at], u, B[at], starts[k])
            gC[at] = torch.bmm(gy[at, None], h[1:].mT)[:, 0]

            g = torch.mul(C[at, :, None], gy[at, None], out=adjoint[: len(u)])
            g[-1] += carry
            scratch.go_back(g)
            gB[at] = torch.bmm(u[:, None], g.mT)[:, 0]
            gu = torch.bmm(B[at, None], g)[:, 0]  # (S, d)

            a *= g
            carry.copy_(a[0])
            a *= h[:-1]  # g_t exp(dt_t A) h_{t-1}: the gradient of the exponent dt_t A
            gdt[at] = torch.mul(a, A_T, out=g).sum(1).addcmul_(gu, x[at])
            gx[at] = gu * dt[at]
            gA_T += a.mul_(dt[at, None]).sum(0)
        return gx, gdt, gA_T.T, gB, gC


class _Scratch:
    """Buffers of one segment, allocated once: fresh ones would cost more than the arithmetic."""

    def __init__(self, segments: list[slice], A_T: Tensor, blocked: bool) -> None:
        self.A_log2 = A_T * LOG2_E  # (n, d)
        self.blocked = blocked
        longest = segments[0].stop if segments else 0
        self.decay = A_T.new_empty(longest + 1, *A_T.shape)  # the way back takes the decay of the token that follows
        self.decay[longest].zero_()
        self.state = A_T.new_empty(longest + 1, *A_T.shape)
        self.decays, self.states = ((), ()) if blocked else (self.decay.unbind(), self.state.unbind())

    def run(self, dt: Tensor, u: Tensor, B: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Decays (S, n, d) and states (S + 1, n, d) of a segment; the first state is the one it starts from."""
        a = torch.mul(dt[:, None], self.A_log2, out=self.decay[: len(u)]).exp2_()
        h = self.state[: len(u) + 1]
        h[0] = start
        torch.mul(u[:, None], B[:, :, None], out=h[1:])
        if self.blocked:
            h[1].addcmul_(a[0], h[0])
            scan_forwards(a, h[1:])
        else:
            for t in range(len(u)):
                self.states[t + 1].addcmul_(self.decays[t], self.states[t])
        return a, h

    def go_back(self, g: Tensor) -> None:
        """Turn what each token of the segment just run adds to the adjoint into the adjoint (S, n, d), in place."""
        if self.blocked:
            scan_backwards(self.decay[1 : len(g) + 1], g)
        else:
            rows = g.unbind()
            for t in reversed(range(len(g) - 1)):
                rows[t].addcmul_(self.decays[t + 1], rows[t + 1])


def _segments(tokens: int, state_numbers: int, blocked: bool) -> list[slice]:
    length = max(1, (BLOCKED_NUMBERS if blocked else SEGMENT_NUMBERS) // state_numbers)
    return [slice(start, min(start + length, tokens)) for start in range(0, tokens, length)]
