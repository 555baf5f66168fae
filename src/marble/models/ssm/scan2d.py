"""The 2-D selective scan of 2DMamba, fast and in bounded memory: equal to `selective_scan_2d_reference`.

Rows of the grid are independent in the row pass and columns in the column pass, so each step of a pass is one
multiply-add over a whole side of the grid; on accelerators a pass takes few launches (`scan_blocked`). A grid of the
largest slides has 84,000 cells of 256 x 16 states, 1.4 GB: it is worked through in blocks of channels and, within
those, blocks of rows. The backward pass keeps the row of states above each block of rows and recomputes the rest.

Letters: H x W cells, d channels, n states per channel, R rows per block. Inside, states are (R, W, n, d).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from marble.models.ssm.scan import BLOCKED_NUMBERS, LOG2_E, takes_blocks, uses_kernel
from marble.models.ssm.scan_blocked import scan_backwards, scan_forwards
from marble.models.ssm.scan_native import NativeSelectiveScan

#: numbers in one block's buffer, (R, W, n, d of the block); the backward pass holds four
BLOCK_NUMBERS = 1 << 21


def selective_scan_2d(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """r_ij = a_ij r_i,j-1 + dt_ij B_ij x_ij, h_ij = a_ij h_i-1,j + r_ij, y_ij = C_ij h_ij + D x_ij, a = exp(dt A).

    Args:
        x: (H, W, d) cells.
        dt: (H, W, d) steps, positive.
        A: (d, n) decay rates, negative.
        B: (H, W, n).
        C: (H, W, n).
        D: (d,).

    Returns:
        (H, W, d).
    """
    run: Callable[..., Tensor] = (NativeSelectiveScan if uses_kernel(x) else _SelectiveScan2d).apply
    y = run(x, dt, A, B, C)
    return torch.addcmul(y, x, D)


@dataclass(frozen=True)
class _Blocks:
    """How a grid is cut: about sqrt(H) rows, so that kept and recomputed states are alike; channels to fit.

    On accelerators (`batched`) blocks are larger, and more rows are taken where all channels fit.
    """

    rows: list[slice]
    channels: list[slice]
    batched: bool = False

    @staticmethod
    def of(height: int, width: int, d: int, n: int, batched: bool = False) -> _Blocks:
        numbers = BLOCKED_NUMBERS if batched else BLOCK_NUMBERS
        rows = isqrt(max(height - 1, 0)) + 1
        if batched:
            rows = max(rows, min(height, numbers // max(1, width * n * d)))
        channels = min(d, max(1, numbers // max(1, rows * width * n)))
        return _Blocks(_slices(height, rows), _slices(d, channels), batched)


class _SelectiveScan2d(torch.autograd.Function):
    """C h, and its derivatives by the adjoint of the column pass, then that of the row pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        height, width = x.shape[:2]
        A_T = A.T.contiguous()  # (n, d)
        ctx.blocks = blocks = _Blocks.of(height, width, A.shape[0], A.shape[1], takes_blocks(x))
        above = A.new_zeros(len(blocks.rows), width, *A_T.shape)  # the row of states above each block of rows
        y = torch.empty_like(x)
        for c in blocks.channels:
            for k, at in enumerate(blocks.rows):
                dt_b = dt[at, :, c]
                a, h = _row_pass(dt_b, dt_b * x[at, :, c], A_T[:, c], B[at], blocks.batched)
                _column_pass(a, h, above[k, ..., c], blocks.batched)
                y[at, :, c] = torch.matmul(C[at, :, None], h).squeeze(2)
                if k + 1 < len(blocks.rows):
                    above[k + 1, ..., c] = h[-1]
        ctx.save_for_backward(x, dt, A_T, B, C, above)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor, ...]:
        x, dt, A_T, B, C, above = ctx.saved_tensors
        blocks = ctx.blocks
        gx, gdt, gA_T = torch.empty_like(x), torch.empty_like(dt), torch.zeros_like(A_T)
        gB, gC = torch.zeros_like(B), torch.zeros_like(C)
        for c in blocks.channels:
            carry: Tensor | None = None  # a g of the row below this block
            for k in reversed(range(len(blocks.rows))):
                at = blocks.rows[k]
                x_b, dt_b, gy_b = x[at, :, c], dt[at, :, c], gy[at, :, c]
                u = dt_b * x_b  # (R, W, d)
                a, r = _row_pass(dt_b, u, A_T[:, c], B[at], blocks.batched)
                h = torch.cat([above[k, ..., c][None], r])  # (R + 1, W, n, d)
                _column_pass(a, h[1:], h[0], blocks.batched)
                gC[at] += torch.matmul(gy_b[:, :, None], h[1:].mT).squeeze(2)

                g = C[at, :, :, None] * gy_b[:, :, None]  # the adjoint of h, from the last row up
                if carry is not None:
                    g[-1] += carry
                _adjoint(a, g, blocks.batched)
                carry = a[0] * g[0]
                exponent = h[:-1].mul_(g)  # gradient of dt A, up to the factor a
                _adjoint(a.transpose(0, 1), g.transpose(0, 1), blocks.batched)  # from here on g is that of r
                exponent[:, 1:].addcmul_(g[:, 1:], r[:, :-1])
                exponent *= a

                gB[at] += torch.matmul(u[:, :, None], g.mT).squeeze(2)
                gu = torch.matmul(B[at, :, None], g).squeeze(2)  # (R, W, d)
                gx[at, :, c] = gu * dt_b
                gdt[at, :, c] = torch.mul(exponent, A_T[:, c], out=g).sum(2).addcmul_(gu, x_b)
                gA_T[:, c] += exponent.mul_(dt_b[:, :, None]).sum((0, 1))
        return gx, gdt, gA_T.T, gB, gC


def _row_pass(dt: Tensor, u: Tensor, A_T: Tensor, B: Tensor, batched: bool) -> tuple[Tensor, Tensor]:
    """Decays and row states (R, W, n, d) of a block of rows; u = dt x."""
    a = (dt[:, :, None] * (A_T * LOG2_E)).exp2_()
    r = u[:, :, None] * B[..., None]
    _pass(a.transpose(0, 1), r.transpose(0, 1), batched)
    return a, r


def _column_pass(a: Tensor, r: Tensor, above: Tensor, batched: bool) -> None:
    """Turn the row states of a block into its states, in place, given the row of states above it (W, n, d)."""
    r[0].addcmul_(a[0], above)
    _pass(a, r, batched)


def _pass(a: Tensor, r: Tensor, batched: bool) -> None:
    """r_i += a_i r_{i-1} along the first axis, in place."""
    if batched:
        scan_forwards(a, r)
        return
    for i in range(1, len(r)):
        r[i].addcmul_(a[i], r[i - 1])


def _adjoint(a: Tensor, g: Tensor, batched: bool) -> None:
    """g_i += a_{i+1} g_{i+1} along the first axis, from its end, in place."""
    if batched:
        scan_backwards(a.roll(-1, 0), g)
        return
    for i in reversed(range(len(g) - 1)):
        g[i].addcmul_(a[i + 1], g[i + 1])


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]
