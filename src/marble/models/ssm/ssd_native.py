"""The segments of `ssd_fast` and `ssd_backward` with the compiled kernel: same interface, same numbers to rounding.

Two calls per segment: what the heads share (B, C, their products) with the decays, and what each head does by itself,
from the convolution to the gate, while its state stays in the cache.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from marble.models.ssm.ssd_backward import SegmentGradient
from marble.models.ssm.ssd_fast import CHUNK, SegmentScan
from marble.models.ssm.ssd_reference import SsdShape
from marble.native.library import LANES, library_number, missing, pointer, run


def why_not(shape: SsdShape, like: Tensor) -> str | None:
    """Why the kernel cannot run a block of `shape` on tensors like this one; None if it can."""
    if like.device.type != "cpu" or like.dtype not in LANES:
        return f"takes float32 and float64 on the CPU, not {like.dtype} on {like.device.type}"
    lanes = LANES[like.dtype]
    if shape.headdim % lanes or shape.state % lanes:
        return f"takes head and state widths in multiples of {lanes}, not {shape.headdim} and {shape.state}"
    return missing()


class _Segment(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_long) for n in ("tokens", "conv", "heads", "groups", "headdim", "state", "row", "convolved")]
        + [(n, ctypes.c_void_p) for n in ("rows", "taps", "conv_bias", "dt_bias", "A", "D")]
        + [(n, ctypes.c_void_p) for n in ("dt", "u", "B", "C", "CB", "decay", "total")]
    )  # fmt: skip


class _Scanned(ctypes.Structure):
    _fields_ = [
        ("state", ctypes.c_void_p), ("gated", ctypes.c_void_p), ("gated_row", ctypes.c_long), ("y", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
    ]  # fmt: skip


class _Gradient(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            "y", "starts", "d_gated", "d_rows", "d_state", "d_B", "d_C", "d_step", "d_log_dt", "d_skip", "d_taps",
            "d_conv_bias", "next_du",
        )
    ]  # fmt: skip


class NativeSegmentScan(SegmentScan):
    """Forward over the segments of one sequence."""

    def forward(self, rows: Tensor, *, keep: bool = False, overwrite: bool = False) -> Tensor:
        shape, scratch = self.shape, self.scratch
        L = len(rows) - shape.conv + 1
        chunks = -(-L // CHUNK)
        gated = self._gate(rows) if overwrite else scratch("gated", L, shape.inner)
        y = scratch("y", L, shape.inner) if keep else None
        starts = scratch("starts", chunks, shape.heads, shape.state, shape.headdim) if keep else None
        self.segment = self._segment(rows, L, chunks)
        run("ssd_prepare", rows, ctypes.byref(self.segment), blocks=chunks)
        scanned = _Scanned(pointer(self.state), gated.data_ptr(), gated.stride(0), pointer(y), pointer(starts))
        run("ssd_forward", rows, ctypes.byref(self.segment), ctypes.byref(scanned), blocks=blocks(shape))
        return gated

    def _segment(self, rows: Tensor, L: int, chunks: int) -> _Segment:
        """Where the kernels read a segment, and where they write what its heads share."""
        shape, scratch, padded = self.shape, self.scratch, chunks * CHUNK
        shared = shape.groups * shape.state
        self.dt = scratch("dt", L, shape.heads)
        places = (
            self.taps, self.conv_bias, self.dt_bias, self.A, self.D,
            self.dt, scratch("u", L, 2 * shared), scratch("B", padded, shared), scratch("C", padded, shared),
            scratch("CB", chunks, shape.groups, CHUNK, CHUNK), scratch("decay", 6, shape.heads, padded),
            scratch("total", chunks, shape.heads),
        )  # fmt: skip
        sizes = (L, shape.conv, shape.heads, shape.groups, shape.headdim, shape.state, rows.stride(0), shape.convolved)
        return _Segment(*sizes, rows.data_ptr(), *map(pointer, places))


class NativeSegmentGradient(NativeSegmentScan, SegmentGradient):
    """Backward over the segments of one sequence, from the last to the first."""

    def backward(self, rows: Tensor, d_gated: Tensor) -> Tensor:
        shape, scratch = self.shape, self.scratch
        L = len(d_gated)
        chunks = -(-L // CHUNK)
        d_rows = scratch("d_rows", L, shape.projected)
        d_step, d_log_dt = scratch("d_step", L, shape.heads), scratch("d_log_dt", L, shape.heads)
        # B and C are shared: every block of heads adds up its own part of their gradients
        parts = scratch("d_shared", 2, shape.groups, blocks(shape) // shape.groups, chunks * CHUNK, shape.state).zero_()
        written = (
            scratch("y", L, shape.inner), scratch("starts", chunks, shape.heads, shape.state, shape.headdim), d_gated,
            d_rows, self.d_state, parts[0], parts[1], d_step, d_log_dt, self.d_D, self.d_taps, self.d_conv_bias,
            self._next_du,
        )  # fmt: skip
        gradient = _Gradient(*map(pointer, written))
        run("ssd_backward", rows, ctypes.byref(self.segment), ctypes.byref(gradient), blocks=blocks(shape))
        shared = 2 * shape.groups * shape.state
        d_act = scratch("d_act", L, shared).view(L, 2, shape.groups, shape.state)
        torch.sum(parts[:, :, :, :L], 2, out=d_act.permute(1, 2, 0, 3))
        at = shape.inner + shape.convolved
        self._backward_convolution(rows, d_rows[:, at - shared : at])
        self._backward_step(d_step, d_log_dt, d_rows[:, at:])
        return d_rows


def blocks(shape: SsdShape) -> int:
    """How many blocks of heads the kernel works off."""
    return library_number("ssd_blocks", shape.heads, shape.groups)
