"""The selective scans of `scan` and `scan2d` with the compiled kernels: the same numbers to rounding."""

from __future__ import annotations

import ctypes
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from marble.native.layout import Grid, Scan, ScanGradient
from marble.native.library import LANES, library_number, missing, place, run


def why_not(x: Tensor) -> str | None:
    """Why the kernels cannot scan channels like these (..., d); None if they can."""
    if x.device.type != "cpu" or x.dtype not in LANES:
        return f"takes float32 and float64 on the CPU, not {x.dtype} on {x.device.type}"
    if x.shape[-1] % LANES[x.dtype]:
        return f"takes channels in multiples of {LANES[x.dtype]}, not {x.shape[-1]}"
    return missing()


def _kernel(x: Tensor, dt: Tensor, A_T: Tensor, B: Tensor, C: Tensor) -> tuple[str, Scan | Grid, tuple[int, ...]]:
    """The kernel for these contiguous inputs, what it reads, and for how many places it keeps the states (n, d)."""
    if x.ndim not in (2, 3):
        raise RuntimeError(f"expected x to be (T, d) or (H, W, d), but it is {tuple(x.shape)}")
    if (reason := why_not(x)) is not None:
        raise RuntimeError(f"the kernel {reason}")
    *cells, channels = x.shape
    states = len(A_T)
    shapes = ((*cells, channels), (*cells, channels), (states, channels), (*cells, states), (*cells, states))
    named = zip(("x", "dt", "A", "B", "C"), (x, dt, A_T, B, C), shapes, strict=True)
    inputs = [place(name, tensor, shape, x.dtype) for name, tensor, shape in named]
    if x.ndim == 2:
        return "scan", Scan(*x.shape, states, *inputs), (-(-len(x) // library_number("scan_segment")),)
    height, width = cells
    band = isqrt(max(height - 1, 0)) + 1  # rows: what is kept and what is recomputed at a time are alike
    return "scan2d", Grid(*x.shape, states, band, *inputs), (-(-height // band), width)


class NativeSelectiveScan(torch.autograd.Function):
    """C h over (T, d) tokens, or over an (H, W, d) grid."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        x, dt, A, B, C = inputs
        if A.ndim != 2:
            raise RuntimeError(f"expected A to be (d, n), but it is {tuple(A.shape)}")
        x, dt, A_T, B, C = (tensor.contiguous() for tensor in (x, dt, A.T, B, C))
        kernel, scan, kept = _kernel(x, dt, A_T, B, C)
        starts = A.new_empty(*kept, *A_T.shape) if any(ctx.needs_input_grad) else None
        y = torch.empty_like(x)
        blocks = library_number("scan_blocks")
        if x.numel():
            places = place("y", y, tuple(x.shape), x.dtype), place("starts", starts, (*kept, *A_T.shape), x.dtype)
            run(f"{kernel}_forward", x, ctypes.byref(scan), *places, widths=(x.shape[-1],), blocks=blocks)
        ctx.save_for_backward(x, dt, A_T, B, C, starts)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        *inputs, starts = ctx.saved_tensors
        x, dt, A_T, B, C = inputs
        kernel, scan, kept = _kernel(*inputs)
        gy = gradients[0].contiguous()
        blocks = library_number("scan_blocks")
        gx, gdt, gA_T = torch.empty_like(x), torch.empty_like(dt), torch.zeros_like(A_T)
        room = B.new_empty if x.numel() else B.new_zeros
        gB, gC = room((2, blocks, *B.shape))  # a part per block of channels
        if x.numel():
            places = {
                "starts": (starts, (*kept, *A_T.shape)),
                "gy": (gy, tuple(x.shape)),
                "gx": (gx, tuple(x.shape)),
                "gdt": (gdt, tuple(x.shape)),
                "gA": (gA_T, tuple(A_T.shape)),
                "gB": (gB, (blocks, *B.shape)),
                "gC": (gC, (blocks, *C.shape)),
            }
            gradient = ScanGradient(*(place(name, tensor, shape, x.dtype) for name, (tensor, shape) in places.items()))
            read, written = ctypes.byref(scan), ctypes.byref(gradient)
            run(f"{kernel}_backward", x, read, written, widths=(x.shape[-1],), blocks=blocks)
        return gx, gdt, gA_T.T, gB.sum(0), gC.sum(0)
