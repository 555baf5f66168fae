"""MARBLE's equations with exact algebra, for the parts where it saves time and memory.

Composed input. In the literal block nothing stands between the fusion phi and the block's input projection W_in, so
W_in phi([x, c]) = (W_in W_x) x + W_in (W_c c + b): one product per fine token, and one row per *parent*, gathered.

Pooled readout. The pooling sees the finest tokens only through scores w.y and sum alpha y, and y = W_out n is linear:
score = (W_out^T w).n and z = W_out sum alpha n. So W_out is never applied to a finest token, and with a running softmax
over segments the normalised tokens n are never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marble.models.ssm.set_mixer import Rows, SetMixer
from marble.models.ssm.ssd import SEGMENTED, Mamba2
from marble.models.ssm.ssd_reference import SsdShape, SsdWeights
from marble.models.ssm.ssd_stream import (
    SCANS,
    InputGradient,
    InputProjection,
    WayBack,
    fast_block,
    gated_segments,
    low_precision,
    segments,
    wide_backward,
)


@dataclass(frozen=True)
class BlockInput:
    """What enters a block: tokens, the matrix that projects them, and projected rows that tokens share."""

    tokens: Tensor  # (T, D)
    in_weight: Tensor | None = None  # (W, D); the block's own if None
    shared: Tensor | None = None  # (R, W)
    index: Tensor | None = None  # (T,) into `shared`


def is_fast(mixer: nn.Module) -> bool:
    """Whether `mixed` and `pooled` take this block where its weights are."""
    return isinstance(mixer, SetMixer) or (isinstance(mixer, Mamba2) and mixer.path() in SEGMENTED)


def composing_pays(T: int, R: int, dim: int, width: int, training: bool) -> bool:
    """Whether W_in W_x, and W_in applied to R parents, cost less than applying W_x to T tokens one by one.

    Counted in multiply-adds: forward, and when training the gradients of both factors.
    """
    composed = (3 if training else 1) * width * dim * (dim + R)
    one_by_one = T * dim * (2 * dim + width if training else dim)
    return composed < one_by_one


def mixed(entering: BlockInput, mixer: Mamba2 | SetMixer) -> Tensor:
    """The block's output (T, D)."""
    in_weight = mixer.in_proj.weight if entering.in_weight is None else entering.in_weight
    if isinstance(mixer, SetMixer):
        return mixer.mix(_rows(entering, in_weight, mixer))
    weights, path = mixer.scan_weights(), mixer.path()
    out_weight = mixer.out_proj.weight
    return fast_block(
        entering.tokens, in_weight, out_weight, weights, mixer.shape, path, entering.shared, entering.index
    )[0]


def pooled(
    entering: BlockInput, mixer: Mamba2 | SetMixer, w: Tensor, extra_scores: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Pool the block's outputs y: sum alpha y (D,), and the scores w.y + extra (T,) of which alpha is the softmax."""
    in_weight = mixer.in_proj.weight if entering.in_weight is None else entering.in_weight
    if isinstance(mixer, SetMixer):
        return mixer.pool(_rows(entering, in_weight, mixer), w, extra_scores)
    run: Callable[..., tuple[Tensor, Tensor]] = _PooledBlock.apply
    low, graph, dtype = low_precision(entering.tokens), torch.is_grad_enabled(), mixer.out_proj.weight.dtype
    with torch.autocast(entering.tokens.device.type, enabled=False):  # decays, states and the pooling stay wide
        return run(
            mixer.shape,
            mixer.path(),
            low,
            graph,
            entering.tokens,
            in_weight.to(dtype),
            None if entering.shared is None else entering.shared.to(dtype),
            entering.index,
            mixer.out_proj.weight,
            w.to(dtype),
            None if extra_scores is None else extra_scores.to(dtype),
            *mixer.scan_weights(),
        )


def _rows(entering: BlockInput, in_weight: Tensor, mixer: SetMixer) -> Rows:
    dtype = mixer.out_proj.weight.dtype  # what autocast composed or gathered is narrower
    shared = None if entering.shared is None else entering.shared.to(dtype)
    return Rows(entering.tokens, in_weight.to(dtype), mixer.shape, shared, entering.index)


class _PooledBlock(torch.autograd.Function):
    """Tokens to W_out sum alpha n (D,) and scores (T,), alpha = softmax(scores), n the block's normalised tokens.

    W_out stands on both sides, in the scores' direction W_out^T w and before the sum; its gradient is one product.
    """

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
        w: Tensor,
        extra_scores: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        norm_weight = weights[-1]
        direction = out_weight.t() @ w  # (H*P,)
        source = InputProjection(tokens, in_weight, shared, index, shape.conv - 1, None, low)
        scan = SCANS[path][0](SsdWeights(*weights), shape)
        way_back = WayBack() if graph else None
        scores = in_weight.new_empty(len(tokens))
        top = in_weight.new_full((), float("-inf"))  # running maximum of the scores
        total = in_weight.new_zeros(())  # running sum of exp(score - top)
        unscaled = in_weight.new_zeros(shape.inner)  # running sum of exp(score - top) * gated / rms
        for start, stop, gated in gated_segments(source, scan, path, way_back):
            inverse = _inverse_rms(gated, shape)  # (L,)
            part = torch.mv(gated, direction * norm_weight).mul_(inverse)
            if extra_scores is not None:
                part += extra_scores[start:stop]
            scores[start:stop] = part
            before, top = top, torch.maximum(top, part.max())
            fade, mass = torch.exp(before - top), torch.exp(part - top)
            total = total * fade + mass.sum()
            unscaled.mul_(fade).addmv_(gated.t(), mass * inverse)
        unit = unscaled / total  # sum alpha gated / rms
        log_total = top + torch.log(total)
        ctx.shape, ctx.path, ctx.low = shape, path, low
        saved = () if way_back is None else way_back.tensors
        ctx.save_for_backward(
            tokens, in_weight, shared, index, out_weight, w, source.kept, scores, log_total, unit, *weights, *saved
        )
        return out_weight @ (unit * norm_weight), scores

    @staticmethod
    @wide_backward
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_z, d_scores = gradients
        shape: SsdShape = ctx.shape
        tokens, in_weight, shared, index, out_weight, w, kept, scores, log_total, unit, *rest = ctx.saved_tensors
        cuts = segments(len(tokens), ctx.path)
        weights, way_back = SsdWeights(*rest[:6]), WayBack.of(rest[6:], len(cuts))
        d_n, direction = torch.stack([d_z, w]) @ out_weight  # (H*P,) each
        source = InputProjection(tokens, in_weight, shared, index, shape.conv - 1, kept, ctx.low)
        d_input = InputGradient(source, ctx.needs_input_grad[4:7])
        scan = SCANS[ctx.path][1](weights, shape, None)
        # A token's gradient lies in the plane of two vectors, as seen through the norm's scale.
        plane = torch.stack([d_n, direction]) * weights.norm_weight  # (2, H*P)
        mean = plane[0] @ unit
        d_all_scores = torch.empty_like(scores)
        d_direction = torch.zeros_like(direction)  # before the norm's scale
        for i, (start, stop) in reversed(list(enumerate(cuts))):
            rows = source.again(start, stop)
            gated = way_back.gated(scan, rows, i)
            inverse = _inverse_rms(gated, shape)
            along = torch.mm(gated, plane.t()) * inverse[:, None]  # (L, 2) d_n . n_t and direction . n_t
            alpha = torch.exp(scores[start:stop] - log_total)
            d_score = alpha * (along[:, 0] - mean) + d_scores[start:stop]
            d_all_scores[start:stop] = d_score
            d_direction.addmv_(gated.t(), d_score * inverse)
            weight = torch.stack([alpha, d_score], dim=1)  # (L, 2)
            shrink = (weight * along).sum(1) * inverse.square() / shape.inner
            d_gated = gated.mul_(-shrink[:, None]).addmm_(weight * inverse[:, None], plane)
            d_input.add(start, stop, scan.backward(rows, d_gated))
        # sum alpha n, and the gradient of the direction
        seen = torch.stack([unit, d_direction]) * weights.norm_weight  # (2, H*P)
        return (
            None,
            None,
            None,
            None,
            d_input.tokens,
            d_input.weight,
            d_input.shared,
            None,
            torch.stack([d_z, w]).t() @ seen,
            out_weight @ seen[1],
            d_all_scores if ctx.needs_input_grad[10] else None,
            *scan.weight_gradients(),
            d_n * unit + direction * d_direction,
        )


def _inverse_rms(gated: Tensor, shape: SsdShape) -> Tensor:
    mean_square = torch.linalg.vector_norm(gated, dim=1).square_() / shape.inner
    return torch.rsqrt(mean_square + shape.eps)
