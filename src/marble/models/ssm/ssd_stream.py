"""A whole Mamba-2 block over any number of tokens, in segments: memory stays a small multiple of the input.

Only the state and the last K-1 projected rows pass from one segment to the next. The backward pass walks the segments
from the last to the first and recomputes each; what the forward pass keeps for it is the state at every segment's
start and, while they are small enough, the projected rows. What the kernel found inside the first segments is kept too,
so that small bags are scanned once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from marble.models.ssm.ssd_backward import SegmentGradient
from marble.models.ssm.ssd_batched import BatchedGradient, BatchedScan
from marble.models.ssm.ssd_fast import Scratch, SegmentScan
from marble.models.ssm.ssd_mamba import MambaGradient, MambaScan
from marble.models.ssm.ssd_native import NativeSegmentGradient, NativeSegmentScan
from marble.models.ssm.ssd_reference import SsdShape, SsdWeights

#: tokens per segment: longer ones make the products faster, shorter ones keep fewer states and buffers
SEGMENT = 1024
#: of a sequence: a state is kept for each of them, so the segments of a very long one are longer
MOST_SEGMENTS = 512
#: of the batched scan, which wants few launches
BATCHED_SEGMENT = 8192
#: projected rows beyond this are projected again in the backward pass instead of kept; of a block that others come
#: after, rows beyond half of it, since theirs are kept meanwhile
KEEP_BYTES = 2 << 30
#: what a scan found inside its segments, kept for the first segments that fit into this; others are scanned again
KEEP_SCANNED_BYTES = 96 << 20


class InputProjection:
    """The projected rows of any segment: tokens W^T, plus `shared[index]` where tokens share a part (their parent's).

    Tokens may be stored in another precision than the weights; they are converted segment by segment.
    """

    def __init__(
        self,
        tokens: Tensor,
        weight: Tensor,
        shared: Tensor | None,
        index: Tensor | None,
        halo: int,
        kept: Tensor | None,
        low: torch.dtype | None = None,
    ) -> None:
        self.tokens, self.weight, self.shared, self.index, self.halo = tokens, weight, shared, index, halo
        self.low = low
        self.kept = kept  # (halo + T, W) or None
        self.scratch = Scratch(weight)

    def empty_rows(self) -> Tensor:
        """A buffer for the projected rows of all tokens; before the first token there are zeros."""
        rows = self.weight.new_empty(self.halo + len(self.tokens), len(self.weight))
        rows[: self.halo] = 0
        return rows

    def project(self, start: int, stop: int) -> Tensor:
        """(halo + stop - start, W) rows, computed; the first `halo` are those before `start`."""
        if self.kept is not None:
            rows = self.kept[start : self.halo + stop]
            self._into(rows[self.halo :], start, stop)
            return rows
        rows = self.scratch("rows", self.halo + stop - start, len(self.weight))
        first = max(0, start - self.halo)
        missing = self.halo - (start - first)
        rows[:missing] = 0
        self._into(rows[missing:], first, stop)
        return rows

    def again(self, start: int, stop: int) -> Tensor:
        """The rows of `project`, kept or computed anew."""
        return self.project(start, stop) if self.kept is None else self.kept[start : self.halo + stop]

    def _into(self, rows: Tensor, start: int, stop: int) -> None:
        tokens = self.segment(start, stop)
        if self.shared is None or self.index is None:
            product_into(rows, tokens, self.weight.t(), self.low)
        else:
            torch.index_select(self.shared, 0, self.index[start:stop], out=rows)
            add_product(rows, tokens, self.weight.t(), self.low)

    def segment(self, start: int, stop: int) -> Tensor:
        part = self.tokens[start:stop]
        if part.dtype == self.weight.dtype:
            return part
        return self.scratch("tokens", *part.shape).copy_(part)


def product_into(out: Tensor, a: Tensor, b: Tensor, low: torch.dtype | None) -> None:
    """Let `out` be a b; the factors rounded to `low` first, if that is a dtype."""
    if low is None and out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    elif low is None:
        out.copy_(torch.mm(a, b))
    else:
        out.copy_(torch.mm(a.to(low), b.to(low)))


def add_product(out: Tensor, a: Tensor, b: Tensor, low: torch.dtype | None) -> None:
    """Add a b to `out`; the factors rounded to `low` first, if that is a dtype."""
    if low is None:
        out.addmm_(a, b)
    else:
        out.add_(torch.mm(a.to(low), b.to(low)))


def low_precision(like: Tensor) -> torch.dtype | None:
    """What projections are rounded to here: autocast's dtype, or None where autocast is off."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


class InputGradient:
    """Adds up the gradients of an `InputProjection`, segment by segment; None where nobody asked."""

    def __init__(self, source: InputProjection, wanted: tuple[bool, bool, bool]) -> None:
        self.source = source
        self.tokens = torch.empty_like(source.tokens) if wanted[0] else None
        self.weight = _summand(source.weight, len(source.tokens)) if wanted[1] else None
        self.shared = torch.zeros_like(source.shared) if wanted[2] and source.shared is not None else None
        self._into = product_into  # the first segment; the others are added to it

    def add(self, start: int, stop: int, d_rows: Tensor) -> None:
        if self.tokens is not None:
            product_into(self.tokens[start:stop], d_rows, self.source.weight, self.source.low)
        if self.weight is not None:
            self._into(self.weight, d_rows.t(), self.source.segment(start, stop), self.source.low)
            self._into = add_product
        if self.shared is not None and self.source.index is not None:
            self.shared.index_add_(0, self.source.index[start:stop], d_rows)


def _summand(like: Tensor, T: int) -> Tensor:
    """Room for a sum over the segments of T tokens: the first is written, so that only an empty sum needs zeros."""
    return torch.empty_like(like) if T else torch.zeros_like(like)


def segments(T: int, path: str) -> list[tuple[int, int]]:
    """(start, stop) of each segment of T tokens on one of the `SCANS`."""
    length = SEGMENT if path in ("torch", "native") else BATCHED_SEGMENT
    length *= -(-T // (length * MOST_SEGMENTS)) or 1
    return [(start, min(start + length, T)) for start in range(0, T, length)]


def keeps_rows(T: int, weight: Tensor, last: bool = True) -> bool:
    """Whether the projected rows of T tokens are kept, in the last block of a model or in one before it."""
    return T * len(weight) * weight.element_size() <= (KEEP_BYTES if last else KEEP_BYTES // 2)


#: path -> the scan and its way back, segment by segment
SCANS: dict[str, tuple[type[SegmentScan], type[SegmentGradient]]] = {
    "torch": (SegmentScan, SegmentGradient),
    "native": (NativeSegmentScan, NativeSegmentGradient),
    "batched": (BatchedScan, BatchedGradient),
    "mamba_ssm": (MambaScan, MambaGradient),
}


class WayBack:
    """What a forward pass keeps for the backward pass, segment by segment."""

    def __init__(self, starts: Sequence[Tensor] = (), scanned: Sequence[Tensor] = ()) -> None:
        self.starts = list(starts)  # the state at every segment's start
        self.scanned = list(scanned)  # of the first segments, the two tensors of each one's `Scanned`

    @classmethod
    def of(cls, tensors: Sequence[Tensor], count: int) -> WayBack:
        """As it was saved by `tensors`, for `count` segments."""
        return cls(tensors[:count], tensors[count:])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.starts, *self.scanned)

    def forward(self, scan: SegmentScan, rows: Tensor, L: int) -> Tensor:
        """The gated tokens of the next segment, whose scan is kept if all before it were and there is room."""
        all_were = len(self.scanned) == 2 * len(self.starts)
        used, more = sum(tensor.nbytes for tensor in self.scanned), scan.scanned_bytes(L)
        self.starts.append(scan.state.clone())
        if more == 0 or not all_were or used + more > KEEP_SCANNED_BYTES:
            return scan.forward(rows)
        gated, scanned = scan.forward_for_later(rows)
        self.scanned += scanned
        return gated

    def gated(self, scan: SegmentGradient, rows: Tensor, segment: int) -> Tensor:
        """The gated tokens of a segment, from what was kept or scanned again; `scan.backward` may follow."""
        kept = self.scanned[2 * segment : 2 * segment + 2]
        if kept:
            return scan.restore(rows, (kept[0], kept[1]))
        return scan.recompute(rows, self.starts[segment])


def gated_segments(
    source: InputProjection, scan: SegmentScan, path: str, way_back: WayBack | None, last: bool = True
) -> Iterator[tuple[int, int, Tensor]]:
    """The forward pass: (start, stop, gated tokens) of one segment after the other.

    What the `way_back` needs is put there, and rows may be kept, of the `last` block more than of others.
    """
    if way_back is not None and keeps_rows(len(source.tokens), source.weight, last):
        source.kept = source.empty_rows()
    for start, stop in segments(len(source.tokens), path):
        rows = source.project(start, stop)
        if way_back is None:
            yield start, stop, scan.forward(rows, overwrite=True)
        else:
            yield start, stop, way_back.forward(scan, rows, stop - start)


def wide_backward(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """A way back that autocast leaves alone, wherever it is called from."""

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(gradients[0].device.type, enabled=False):
            return backward(ctx, *gradients)

    return run


class _Block(torch.autograd.Function):
    """Tokens to block output; both projections, the scan and the norm in one node of the graph."""

    @staticmethod
    def forward(
        ctx: Any,
        shape: SsdShape,
        path: str,
        low: torch.dtype | None,
        graph: bool,
        tokens: Tensor,
        in_weight: Tensor,
        shared: Tensor | None,
        index: Tensor | None,
        out_weight: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        source = InputProjection(tokens, in_weight, shared, index, shape.conv - 1, None, low)
        scan = SCANS[path][0](SsdWeights(*weights), shape)
        way_back = WayBack() if graph else None
        out = in_weight.new_empty(len(tokens), len(out_weight))
        for start, stop, gated in gated_segments(source, scan, path, way_back, last=False):
            normal = gated.mul_(_inverse_rms(gated, shape)).mul_(weights[-1])
            product_into(out[start:stop], normal, out_weight.t(), low)
        ctx.shape, ctx.path, ctx.low = shape, path, low
        saved = () if way_back is None else way_back.tensors
        ctx.save_for_backward(tokens, in_weight, shared, index, out_weight, source.kept, *weights, *saved)
        return out, scan.state

    @staticmethod
    @wide_backward
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_out, d_state = gradients
        shape: SsdShape = ctx.shape
        tokens, in_weight, shared, index, out_weight, kept, *rest = ctx.saved_tensors
        cuts = segments(len(tokens), ctx.path)
        weights, way_back = SsdWeights(*rest[:6]), WayBack.of(rest[6:], len(cuts))
        source = InputProjection(tokens, in_weight, shared, index, shape.conv - 1, kept, ctx.low)
        d_input = InputGradient(source, ctx.needs_input_grad[4:7])
        scan = SCANS[ctx.path][1](weights, shape, d_state)
        d_out_weight, d_norm = _summand(out_weight, len(tokens)), torch.zeros_like(weights.norm_weight)
        into = product_into  # the first segment, the others are added to it
        for i, (start, stop) in reversed(list(enumerate(cuts))):
            rows = source.again(start, stop)
            gated = way_back.gated(scan, rows, i)
            inverse = _inverse_rms(gated, shape)
            unit = scan.scratch("unit", *gated.shape).copy_(gated).mul_(inverse)
            d_part = d_out[start:stop]
            d_normal = scan.scratch("d_normal", *gated.shape)
            product_into(d_normal, d_part, out_weight, ctx.low)
            into(d_out_weight, d_part.t(), torch.mul(unit, weights.norm_weight, out=gated), ctx.low)
            into = add_product
            d_norm += torch.mul(d_normal, unit, out=gated).sum(0)
            d_unit = d_normal.mul_(weights.norm_weight)
            d_gated = _rms_backward(d_unit, unit, inverse, shape)
            d_input.add(start, stop, scan.backward(rows, d_gated))
        return (
            None,
            None,
            None,
            None,
            d_input.tokens,
            d_input.weight,
            d_input.shared,
            None,
            d_out_weight,
            *scan.weight_gradients(),
            d_norm,
        )


def _inverse_rms(gated: Tensor, shape: SsdShape) -> Tensor:
    """(L, inner) or (L, 1): one over the root mean square of each token, taken group by group."""
    grouped = gated.view(len(gated), shape.groups, -1)
    mean_square = torch.linalg.vector_norm(grouped, dim=2, keepdim=True).square_() / grouped.shape[2]
    inverse = torch.rsqrt(mean_square + shape.eps)
    return inverse[:, 0] if shape.groups == 1 else inverse.expand_as(grouped).reshape(len(gated), -1)


def _rms_backward(d_unit: Tensor, unit: Tensor, inverse: Tensor, shape: SsdShape) -> Tensor:
    grouped = (len(unit), shape.groups, -1)
    along = (d_unit * unit).view(grouped).mean(2, keepdim=True)
    return d_unit.view(grouped).sub_(unit.view(grouped) * along).view_as(unit).mul_(inverse)


def fast_block(
    tokens: Tensor,
    in_weight: Tensor,
    out_weight: Tensor,
    weights: SsdWeights,
    shape: SsdShape,
    path: str,
    shared: Tensor | None = None,
    index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Block output (T, d_model) and last state (H, P, N) for `tokens` (T, D) and weights of the two projections.

    The scan runs on `path`, one of `SCANS`.
    With `shared` (R, W) and `index` (T,), row `index[t]` of `shared` is added to token t's projection.
    """
    run: Callable[..., tuple[Tensor, Tensor]] = _Block.apply
    low, graph, dtype = low_precision(tokens), torch.is_grad_enabled(), weights.conv_weight.dtype
    with torch.autocast(tokens.device.type, enabled=False):  # decays, states and sums stay wide
        in_weight, shared = in_weight.to(dtype), None if shared is None else shared.to(dtype)
        out, state = run(shape, path, low, graph, tokens, in_weight, shared, index, out_weight, *weights)
    grouped = state.view(shape.groups, shape.state, -1, shape.headdim)  # (G, N, H/G, P)
    return out, grouped.permute(0, 2, 3, 1).reshape(shape.heads, shape.headdim, shape.state)
