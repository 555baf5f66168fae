"""An order-free mixer of Mamba-2's shape and state size: what tokens leave behind is a sum, and a sum has no direction.

Letters as in `ssd_reference`. The input projection gives one row [z | x | B | C | a] per token; x, B and C pass SiLU
alone (a convolution along the sequence would be a direction), and instead of a decay by distance every head has a gate
by content, g = softmax of a over all tokens:

    S = sum_t g_t x_t B_t^T        y_t = S C_t + D x_t        out_t = RMSNorm(y_t * silu(z_t))

The state S (H, P, N) is Mamba-2's; each token writes to it once and reads it once, so time is linear. In exact
arithmetic no order of the tokens changes anything. In floating point a sum depends on the order of its terms, by
rounding alone; `Marble` therefore hands over the tokens sorted by cell, and its results are the same to the last bit.

`reference_mix` is these lines. `SetMixer` gives the same numbers in segments: one pass for the state, one to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from torch.utils.checkpoint import checkpoint

from marble.errors import InputError
from marble.models.ssm import ssd_stream
from marble.models.ssm.ssd import GroupedNorm, block_shape
from marble.models.ssm.ssd_reference import SsdShape
from marble.models.ssm.ssd_stream import keeps_rows, low_precision


def row_widths(shape: SsdShape) -> list[int]:
    """Widths of z, x, B, C and a in a projected row."""
    return [shape.inner, shape.inner, shape.state, shape.state, shape.heads]


def reference_mix(rows: Tensor, D: Tensor, norm_weight: Tensor, shape: SsdShape) -> tuple[Tensor, Tensor]:
    """Projected rows (T, z|x|B|C|a) to normalised tokens (T, H*P) and the state (H, P, N)."""
    z, x, B, C, a = torch.split(rows, row_widths(shape), dim=1)
    x, B, C = silu(x).view(len(x), shape.heads, shape.headdim), silu(B), silu(C)
    g = torch.softmax(a, dim=0)  # (T, H) each head's shares sum to 1
    S = torch.einsum("th,thp,tn->hpn", g, x, B)
    y = torch.einsum("hpn,tn->thp", S, C) + D[:, None] * x
    gated = y.reshape(len(x), -1) * silu(z)
    return gated * torch.rsqrt(gated.square().mean(1, keepdim=True) + shape.eps) * norm_weight, S


class SetMixer(nn.Module):
    """One order-free mixer, without residual or norm around it; weights are named as in `Mamba2`.

    Args:
        d_model: width of the tokens.
        d_state: size of each head's state.
        expand: inner width over `d_model`.
        headdim: width of a head.
        eps: of the norm.
    """

    def __init__(self, d_model: int, d_state: int = 128, expand: int = 2, headdim: int = 64, eps: float = 1e-5) -> None:
        super().__init__()
        self.shape = shape = block_shape(d_model, d_state, expand=expand, headdim=headdim, eps=eps)
        self.in_proj = nn.Linear(d_model, sum(row_widths(shape)), bias=False)
        self.D = nn.Parameter(torch.ones(shape.heads))
        self.norm = GroupedNorm(shape.inner)
        self.out_proj = nn.Linear(shape.inner, d_model, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(T, d_model) -> (T, d_model), by the definition."""
        if tokens.ndim != 2 or tokens.shape[1] != self.in_proj.in_features or len(tokens) == 0:
            raise InputError(
                f"SetMixer takes (T, {self.in_proj.in_features}) tokens with T >= 1, got {tuple(tokens.shape)}"
            )
        out: Tensor = self.out_proj(reference_mix(self.in_proj(tokens), self.D, self.norm.weight, self.shape)[0])
        return out

    def mix(self, rows: Rows) -> Tensor:
        """(T, d_model): the same in segments."""
        with rows.wide():
            return torch.cat(self._each_segment(rows, lambda normal: rows.project(normal, self.out_proj.weight)))

    def pool(self, rows: Rows, w: Tensor, extra_scores: Tensor | None) -> tuple[Tensor, Tensor]:
        """Pool the outputs y: sum alpha y (d_model,), and the scores w.y + extra (T,) of which alpha is the softmax.

        The output projection is linear, so it is applied to the pooled vector alone, and no segment's tokens are kept.
        """
        with rows.wide():
            return self._pool(rows, w, None if extra_scores is None else rows.cut(extra_scores.to(rows.dtype)))

    def _pool(self, rows: Rows, w: Tensor, extras: tuple[Tensor, ...] | None) -> tuple[Tensor, Tensor]:
        direction = self.out_proj.weight.t() @ w  # (H*P,)

        def part(normal: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            scores = torch.mv(normal, direction)  # (L,)
            if extras is not None:
                scores = scores + extras[i]
            top = scores.detach().max()
            mass = torch.exp(scores - top)
            return scores, top, mass.sum(), mass @ normal

        scores, tops, totals, sums = zip(*self._each_segment(rows, part, numbered=True))
        fade = torch.softmax(torch.stack(tops), dim=0)  # whatever the tops are subtracted from cancels below
        pooled = fade @ torch.stack(sums) / (fade @ torch.stack(totals))
        return self.out_proj.weight @ pooled, torch.cat(scores)

    def _each_segment(self, rows: Rows, finish: Callable[..., Any], numbered: bool = False) -> list[Any]:
        """`finish` of every segment's normalised tokens; the backward pass computes a segment again."""
        state, kept = self._state(rows)

        def read(i: int) -> Any:
            z, x, C = rows.part(i, 0), kept[i] if kept else silu(rows.part(i, 1)), silu(rows.part(i, 3))
            y = torch.addcmul(C @ state, x, self.D.repeat_interleave(self.shape.headdim))  # (L, H*P)
            gated = y * silu(z)
            inverse = torch.rsqrt(gated.square().mean(1, keepdim=True) + self.shape.eps)
            normal = gated * inverse * self.norm.weight
            return finish(normal, i) if numbered else finish(normal)

        return [rows.again(read, i) for i in range(rows.count)]

    def _state(self, rows: Rows) -> tuple[Tensor, list[Tensor]]:
        """The state as (N, H*P), and every segment's x where they are worth keeping."""
        g = torch.softmax(torch.cat([rows.part(i, 4) for i in range(rows.count)]), dim=0)  # (T, H)
        shares = rows.cut(g)
        keep = not torch.is_grad_enabled() and keeps_rows(rows.length, rows.weights[1])
        kept: list[Tensor] = []

        def write(i: int) -> Tensor:
            x, B = silu(rows.part(i, 1)), silu(rows.part(i, 2))
            if keep:
                kept.append(x)
            weighted = x.view(len(x), self.shape.heads, -1) * shares[i][:, :, None]  # (L, H, P)
            return B.t() @ weighted.flatten(1)

        state = rows.again(write, 0)
        for i in range(1, rows.count):
            state = state + rows.again(write, i)
        return state, kept


class Rows:
    """Projected rows of tokens, in segments and in columns: tokens W^T, plus `shared[index]` where tokens share a part.

    Where autocast is on, the factors of projections are rounded to its dtype; all else is computed in the weight's.
    While a graph is recorded and the rows are small enough they are projected once and kept; else each part is
    projected when it is asked for, from tokens converted segment by segment.
    """

    def __init__(
        self,
        tokens: Tensor,  # (T, D)
        weight: Tensor,  # (W, D)
        shape: SsdShape,
        shared: Tensor | None = None,  # (R, W)
        index: Tensor | None = None,  # (T,)
    ) -> None:
        widths = row_widths(shape)
        self.length = len(tokens)
        self.dtype, self.low = weight.dtype, low_precision(tokens)
        self.kept: list[Sequence[Tensor]] = []
        self.tokens = self.cut(tokens)
        self.weights = torch.split(weight, widths)
        self.shared = None if shared is None else torch.split(shared, widths, dim=1)
        self.index = None if index is None else self.cut(index)
        if torch.is_grad_enabled() and keeps_rows(self.length, weight):
            rows = self.project(tokens, weight)
            if shared is not None and index is not None:
                rows = rows + shared.index_select(0, index)
            self.kept = [torch.split(part, widths, dim=1) for part in self.cut(rows)]

    @property
    def count(self) -> int:
        return len(self.tokens)

    def wide(self) -> torch.autocast:
        """Inside, nothing is rounded but by `project`."""
        return torch.autocast(self.tokens[0].device.type, enabled=False)

    def project(self, tokens: Tensor, weight: Tensor) -> Tensor:
        """Tokens W^T in `dtype`, the factors rounded first where autocast was on."""
        low = self.dtype if self.low is None else self.low
        return linear(tokens.to(low), weight.to(low)).to(self.dtype)

    def part(self, i: int, column: int) -> Tensor:
        """(L, width) of segment i: z, x, B, C or a."""
        if self.kept:
            return self.kept[i][column]
        rows = self.project(self.tokens[i], self.weights[column])
        if self.shared is not None and self.index is not None:
            rows = rows + self.shared[column].index_select(0, self.index[i])
        return rows

    def again(self, fn: Callable[[int], Any], i: int) -> Any:
        """fn(i), of which a graph of several segments keeps nothing: the backward pass calls it again."""
        if self.count == 1 or not torch.is_grad_enabled():  # one segment has the memory of one either way
            return fn(i)
        return checkpoint(fn, i, use_reentrant=False, preserve_rng_state=False)

    @staticmethod
    def cut(per_token: Tensor) -> tuple[Tensor, ...]:
        """A tensor with one row per token, in segments."""
        return torch.split(per_token, ssd_stream.SEGMENT)
