"""The selective scans of `scan` and `scan2d` with the compiled kernels: the same numbers to rounding."""

from __future__ import annotations

import ctypes
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from marble.native.library import LANES, library_number, missing, pointer, run


def why_not(x: Tensor) -> str | None:
    """Why the kernels cannot scan channels like these (..., d); None if they can."""
    if x.device.type != "cpu" or x.dtype not in LANES:
        return f"takes float32 and float64 on the CPU, not {x.dtype} on {x.device.type}"
    if x.shape[-1] % LANES[x.dtype]:
        return f"takes channels in multiples of {LANES[x.dtype]}, not {x.shape[-1]}"
    return missing()


class _Scan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("tokens", "channels", "states")] + [
        (name, ctypes.c_void_p) for name in ("x", "dt", "A", "B", "C")
    ]


class _Grid(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("height", "width", "channels", "states", "band")] + [
        (name, ctypes.c_void_p) for name in ("x", "dt", "A", "B", "C")
    ]


class _Gradient(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("starts", "gy", "gx", "gdt", "gA", "gB", "gC")]


class NativeScan(torch.autograd.Function):
    """C_t h_t over (T, d) tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        x, dt, A_T, B, C = (t.contiguous() for t in (x, dt, A.T, B, C))
        segments = -(-len(x) // library_number("scan_segment"))
        starts = A.new_empty(segments, *A_T.shape) if any(ctx.needs_input_grad) else None
        y = torch.empty_like(x)
        scan = _Scan(*x.shape, len(A_T), *map(pointer, (x, dt, A_T, B, C)))
        blocks = library_number("scan_blocks")
        run("scan_forward", x, ctypes.byref(scan), pointer(y), pointer(starts), blocks=blocks)
        ctx.save_for_backward(x, dt, A_T, B, C, starts)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor, ...]:
        x, dt, A_T, B, C, starts = ctx.saved_tensors
        scan = _Scan(*x.shape, len(A_T), *map(pointer, (x, dt, A_T, B, C)))
        return _backward("scan_backward", scan, starts, gy, (x, dt, A_T, B))


class NativeScan2d(torch.autograd.Function):
    """C h over an (H, W, d) grid."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        x, dt, A_T, B, C = (t.contiguous() for t in (x, dt, A.T, B, C))
        height, width, channels = x.shape
        ctx.band = isqrt(height - 1) + 1  # rows: what is kept and what is recomputed at a time are alike
        bands = -(-height // ctx.band)
        above = A.new_empty(bands, width, *A_T.shape) if any(ctx.needs_input_grad) else None
        y = torch.empty_like(x)
        grid = _Grid(height, width, channels, len(A_T), ctx.band, *map(pointer, (x, dt, A_T, B, C)))
        blocks = library_number("scan_blocks")
        run("scan2d_forward", x, ctypes.byref(grid), pointer(y), pointer(above), blocks=blocks)
        ctx.save_for_backward(x, dt, A_T, B, C, above)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor, ...]:
        x, dt, A_T, B, C, above = ctx.saved_tensors
        grid = _Grid(*x.shape, len(A_T), ctx.band, *map(pointer, (x, dt, A_T, B, C)))
        return _backward("scan2d_backward", grid, above, gy, (x, dt, A_T, B))


def _backward(
    kernel: str, scan: ctypes.Structure, starts: Tensor, gy: Tensor, like: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Gradients of x, dt, A, B, C; those of B and C come in one part per block of channels."""
    x, dt, A_T, B = like
    blocks = library_number("scan_blocks")
    gy = gy.contiguous()
    gx, gdt, gA_T = torch.empty_like(x), torch.empty_like(dt), torch.zeros_like(A_T)
    gB, gC = B.new_empty(blocks, *B.shape), B.new_empty(blocks, *B.shape)
    gradient = _Gradient(*map(pointer, (starts, gy, gx, gdt, gA_T, gB, gC)))
    run(kernel, x, ctypes.byref(scan), ctypes.byref(gradient), blocks=blocks)
    return gx, gdt, gA_T.T, gB.sum(0), gC.sum(0)
