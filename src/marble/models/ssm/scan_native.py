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


def _kernel(x: Tensor, dt: Tensor, A_T: Tensor, B: Tensor, C: Tensor) -> tuple[str, ctypes.Structure, tuple[int, ...]]:
    """The kernel for these contiguous inputs, what it reads, and for how many places it keeps the states (n, d)."""
    inputs = [pointer(tensor) for tensor in (x, dt, A_T, B, C)]
    if x.ndim == 2:
        segments = -(-len(x) // library_number("scan_segment"))
        return "scan", _Scan(*x.shape, len(A_T), *inputs), (segments,)
    height, width, _ = x.shape
    band = isqrt(height - 1) + 1  # rows: what is kept and what is recomputed at a time are alike
    return "scan2d", _Grid(*x.shape, len(A_T), band, *inputs), (-(-height // band), width)


class NativeSelectiveScan(torch.autograd.Function):
    """C h over (T, d) tokens, or over an (H, W, d) grid."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        x, dt, A, B, C = inputs
        x, dt, A_T, B, C = (tensor.contiguous() for tensor in (x, dt, A.T, B, C))
        kernel, scan, kept = _kernel(x, dt, A_T, B, C)
        starts = A.new_empty(*kept, *A_T.shape) if any(ctx.needs_input_grad) else None
        y = torch.empty_like(x)
        blocks = library_number("scan_blocks")
        run(f"{kernel}_forward", x, ctypes.byref(scan), pointer(y), pointer(starts), blocks=blocks)
        ctx.save_for_backward(x, dt, A_T, B, C, starts)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        *inputs, starts = ctx.saved_tensors
        x, dt, A_T, B, _ = inputs
        kernel, scan, _ = _kernel(*inputs)
        gy = gradients[0].contiguous()
        blocks = library_number("scan_blocks")
        gx, gdt, gA_T = torch.empty_like(x), torch.empty_like(dt), torch.zeros_like(A_T)
        gB, gC = B.new_empty(2, blocks, *B.shape)  # a part per block of channels
        gradient = _Gradient(*map(pointer, (starts, gy, gx, gdt, gA_T, gB, gC)))
        run(f"{kernel}_backward", x, ctypes.byref(scan), ctypes.byref(gradient), blocks=blocks)
        return gx, gdt, gA_T.T, gB.sum(0), gC.sum(0)
