"""The segments of `ssd_fast` and `ssd_backward` with the compiled kernel: same interface, same numbers to rounding.

Two calls per segment: what the heads share (B, C, their products) with the decays, and what each head does by itself,
from the convolution to the gate, while its state stays in the cache.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from marble.models.ssm.ssd_backward import SegmentGradient
from marble.models.ssm.ssd_fast import Scanned, SegmentScan
from marble.models.ssm.ssd_reference import SsdShape, SsdWeights
from marble.native.layout import CHUNK, Segment, SsdGradient
from marble.native.layout import Scanned as ScannedPlaces
from marble.native.library import LANES, check, library_number, missing, place, place_of_rows, run


def why_not(shape: SsdShape, like: Tensor) -> str | None:
    """Why the kernel cannot run a block of `shape` on tensors like this one; None if it can."""
    if like.device.type != "cpu" or like.dtype not in LANES:
        return f"takes float32 and float64 on the CPU, not {like.dtype} on {like.device.type}"
    lanes = LANES[like.dtype]
    if shape.headdim % lanes or shape.state % lanes:
        return f"takes head and state widths in multiples of {lanes}, not {shape.headdim} and {shape.state}"
    return missing()


class NativeSegmentScan(SegmentScan):
    """Forward over the segments of one sequence."""

    def __init__(self, weights: SsdWeights, shape: SsdShape, *d_state: Tensor | None) -> None:
        if (reason := why_not(shape, weights.conv_weight)) is not None:
            raise RuntimeError(f"the kernel {reason}")
        self.dtype = weights.conv_weight.dtype
        check("conv_weight", weights.conv_weight, (shape.convolved, 1, shape.conv), self.dtype)
        check("A_log", weights.A_log, (shape.heads,), self.dtype)
        for name in ("dt_bias", "D"):
            check(name, getattr(weights, name), (shape.heads,), self.dtype)
        check("conv_bias", weights.conv_bias, (shape.convolved,), self.dtype)
        dense = {name: getattr(weights, name).contiguous() for name in ("conv_bias", "dt_bias", "D")}
        super().__init__(weights._replace(**dense), shape, *d_state)  # type: ignore[arg-type]  # of the way back

    def scanned_bytes(self, L: int) -> int:
        return (L * self.shape.inner + math.prod(self._starts_shape(L))) * self.dtype.itemsize

    def forward_for_later(self, rows: Tensor) -> tuple[Tensor, Scanned]:
        L = len(rows) - self.shape.conv + 1
        scanned = self.taps.new_empty(L, self.shape.inner), self.taps.new_empty(self._starts_shape(L))
        return self._forward(rows, False, scanned), scanned

    def forward(self, rows: Tensor, *, keep: bool = False, overwrite: bool = False) -> Tensor:
        L = len(rows) - self.shape.conv + 1
        if not keep:
            return self._forward(rows, overwrite, None)
        scanned = self.scratch("y", L, self.shape.inner), self.scratch("starts", *self._starts_shape(L))
        return self._forward(rows, overwrite, scanned)

    def _starts_shape(self, L: int) -> tuple[int, int, int, int]:
        return -(-L // CHUNK), self.shape.heads, self.shape.state, self.shape.headdim

    def _forward(self, rows: Tensor, overwrite: bool, scanned: Scanned | None) -> Tensor:
        shape = self.shape
        L = self._prepare(rows)
        gated = self._gate(rows) if overwrite else self.scratch("gated", L, shape.inner)
        self.scanned = scanned
        y, starts = (None, None) if scanned is None else scanned
        places = ScannedPlaces(
            place("state", self.state, (shape.groups, shape.state, self.width), self.dtype),
            place_of_rows("gated", gated, (L, shape.inner), self.dtype),
            gated.stride(0),
            place("y", y, (L, shape.inner), self.dtype),
            place("starts", starts, self._starts_shape(L), self.dtype),
        )
        segment, widths = ctypes.byref(self.segment), (shape.headdim, shape.state)
        run("ssd_forward", rows, segment, ctypes.byref(places), widths=widths, blocks=blocks(shape))
        return gated

    def _prepare(self, rows: Tensor) -> int:
        """Let the kernels find what the heads share; the number of tokens."""
        L = len(rows) - self.shape.conv + 1
        chunks = -(-L // CHUNK)
        self.segment = self._segment(rows, L, chunks)
        self.rows = rows  # alive as long as the segment points at it
        widths = (self.shape.headdim, self.shape.state)
        run("ssd_prepare", rows, ctypes.byref(self.segment), widths=widths, blocks=chunks)
        return L

    def _segment(self, rows: Tensor, L: int, chunks: int) -> Segment:
        """Where the kernels read a segment, and where they write what its heads share."""
        shape, scratch, padded = self.shape, self.scratch, chunks * CHUNK
        if L < 0:
            raise RuntimeError(f"expected rows to begin with {shape.conv - 1} earlier ones, but there are {len(rows)}")
        shared = shape.groups * shape.state
        self.dt = scratch("dt", L, shape.heads)
        places: dict[str, tuple[Tensor, tuple[int, ...]]] = {
            "taps": (self.taps, (shape.conv, shape.convolved)),
            "conv_bias": (self.conv_bias, (shape.convolved,)),
            "dt_bias": (self.dt_bias, (shape.heads,)),
            "A": (self.A, (shape.heads,)),
            "D": (self.D, (shape.heads,)),
            "dt": (self.dt, (L, shape.heads)),
        }
        room = {
            "u": (L, 2 * shared),
            "B": (padded, shared),
            "C": (padded, shared),
            "CB": (chunks, shape.groups, CHUNK, CHUNK),
            "decay": (6, shape.heads, padded),
            "total": (chunks, shape.heads),
        }
        places |= {name: (scratch(name, *size), size) for name, size in room.items()}
        sizes = (L, shape.conv, shape.heads, shape.groups, shape.headdim, shape.state, shape.projected, shape.convolved)
        return Segment(
            *sizes,
            place("rows", rows, (shape.conv - 1 + L, shape.projected), self.dtype),
            *(place(name, tensor, size, self.dtype) for name, (tensor, size) in places.items()),
        )


class NativeSegmentGradient(NativeSegmentScan, SegmentGradient):
    """Backward over the segments of one sequence, from the last to the first."""

    def restore(self, rows: Tensor, scanned: Scanned) -> Tensor:
        L, self.scanned = self._prepare(rows), scanned
        gated = self.scratch("gated", L, self.shape.inner)
        torch.ops.aten.silu.out(self._gate(rows), out=gated)
        return gated.mul_(scanned[0])

    def backward(self, rows: Tensor, d_gated: Tensor) -> Tensor:
        shape, scratch, dtype = self.shape, self.scratch, self.dtype
        L = self.segment.tokens
        if self.scanned is None or rows.data_ptr() != self.rows.data_ptr() or rows.shape != self.rows.shape:
            raise RuntimeError("expected the rows of the segment that was just recomputed or restored")
        chunks, per_group = -(-L // CHUNK), blocks(shape) // shape.groups
        d_rows = scratch("d_rows", L, shape.projected)
        d_step, d_log_dt = scratch("d_step", L, shape.heads), scratch("d_log_dt", L, shape.heads)
        # B and C are shared: every block of heads adds up its own part of their gradients, from zero
        parts = scratch("d_shared", 2, shape.groups, per_group, chunks * CHUNK, shape.state)
        y, starts = self.scanned
        places: dict[str, tuple[Tensor, tuple[int, ...]]] = {
            "y": (y, (L, shape.inner)),
            "starts": (starts, self._starts_shape(L)),
            "d_gated": (d_gated, (L, shape.inner)),
            "d_rows": (d_rows, (L, shape.projected)),
            "d_state": (self.d_state, (shape.groups, shape.state, self.width)),
            "d_B": (parts[0], (shape.groups, per_group, chunks * CHUNK, shape.state)),
            "d_C": (parts[1], (shape.groups, per_group, chunks * CHUNK, shape.state)),
            "d_step": (d_step, (L, shape.heads)),
            "d_log_dt": (d_log_dt, (L, shape.heads)),
            "d_skip": (self.d_D, (shape.heads,)),
            "d_taps": (self.d_taps, (shape.conv, shape.convolved)),
            "d_conv_bias": (self.d_conv_bias, (shape.convolved,)),
            "next_du": (self._next_du, (shape.conv - 1, shape.convolved)),
        }
        gradient = SsdGradient(*(place(name, tensor, size, dtype) for name, (tensor, size) in places.items()))
        places_of = ctypes.byref(self.segment), ctypes.byref(gradient)
        run("ssd_backward", rows, *places_of, widths=(shape.headdim, shape.state), blocks=blocks(shape))
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
