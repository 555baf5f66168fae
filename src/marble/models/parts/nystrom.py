"""Nystrom attention: softmax attention in time and memory linear in the number of tokens.

    n  tokens      m  landmarks      l = ceil(n / m)  tokens per landmark      h  heads      d  width of a head
    q~, k~         landmarks: means of l consecutive queries, keys
    A1 = softmax(q k~^T)  (n, m)     A2 = softmax(q~ k~^T)  (m, m)     A3 = softmax(q~ k^T)  (m, n)
    Z              approximate pseudo-inverse of A2

The result is A1 Z A3 v plus a depthwise convolution of v along the tokens. The product is taken from the right, so that
nothing larger than (n, d) per head outlives its step. Tokens are padded with zeros on the left to l * m rows; the
padding is not masked: it counts in the landmarks and in the softmax denominators, as in the original.

A small bag has many landmarks of padding alone, all zero. The first c landmarks being equal, only one is kept, which
counts c times: its key has log c added to its scores, and so has the first token for the padding left out with them.
Rows and columns of A2 that belong to equal landmarks are equal too, and Z is exactly that of a smaller matrix in which
they are one: with F = (their sum / sqrt(c), the others) and A2' = F A2 F^T, Z = F^T Z' F. A bag of 65 tiles is 66
tokens and inverts 66 x 66 instead of 256 and 256 x 256.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from marble.errors import InputError


@dataclass(frozen=True)
class Landmarked:
    """Queries, keys and values of one call with their landmarks: m' = m - c + 1 of them, and p = l * m' tokens."""

    q: Tensor  # (h, p, d), scaled by d^-1/2
    k: Tensor  # (h, p, d)
    v: Tensor  # (h, p, d)
    q_mean: Tensor  # (h, m', d)
    k_mean: Tensor  # (h, m', d)
    inverse: Tensor  # (h, m', m') Z'
    equal: int  # c: the first landmark stands for this many
    left_out: int  # l * (c - 1) rows of padding: the first token stands for these and itself
    tokens: int  # n: the last n of the p rows are real

    def with_padding(self, by_token: Tensor) -> Tensor:
        """(h, p, d) of queries or values -> (h, l * m, d), with the rows that were left out."""
        return pad(by_token, (0, 0, self.left_out, 0))


class NystromAttention(nn.Module):
    """Self-attention over (n, dim) tokens.

    Args:
        dim: width of the tokens.
        heads: number of heads.
        dim_head: width of a head; `dim // heads` if not given.
        landmarks: m.
        iterations: steps of the iterative pseudo-inverse.
        dropout: after the output projection.
        kernel: length of the convolution of v.
        first_rows: return the first n of the padded rows instead of the last n: a mistake of the published package up
            to version 0.0.9, kept for exact reproduction.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        dim_head: int | None = None,
        landmarks: int = 256,
        iterations: int = 6,
        dropout: float = 0.0,
        kernel: int = 33,
        first_rows: bool = False,
    ) -> None:
        super().__init__()
        width = dim // heads if dim_head is None else dim_head
        if width < 1 or landmarks < 1:
            raise InputError(f"width {dim} is too small for {heads} heads and {landmarks} landmarks")
        self.heads, self.width, self.landmarks, self.iterations = heads, width, landmarks, iterations
        self.first_rows = first_rows
        self.qkv = nn.Linear(dim, 3 * heads * width, bias=False)
        self.out = nn.Linear(heads * width, dim)
        self.dropout = nn.Dropout(dropout)
        self.conv = nn.Conv2d(heads, heads, (kernel, 1), padding=(kernel // 2, 0), groups=heads, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.project(x))

    def project(self, x: Tensor) -> Landmarked:
        n, m = x.shape[0], self.landmarks
        group = -(-n // m)  # l
        equal = max((group * m - n) // group, 1)  # c
        kept = m - equal + 1  # m'
        padded = pad(x, (0, 0, group * kept - n, 0))  # (p, dim)
        q, k, v = self.qkv(padded).view(group * kept, 3, self.heads, self.width).permute(1, 2, 0, 3)  # each (h, p, d)
        q = q * self.width**-0.5
        q_mean, k_mean = (t.reshape(self.heads, kept, group, self.width).mean(dim=2) for t in (q, k))  # (h, m', d)
        between = _weights(q_mean, k_mean, equal)  # (h, m', m') A2 with the first c columns added up
        inverse = pseudo_inverse(between, self.iterations, equal)
        return Landmarked(q, k, v, q_mean, k_mean, inverse, equal, group * (equal - 1), n)

    def mix(self, at: Landmarked) -> Tensor:
        summary = _scale_first(_attend(at.q_mean, at.k, at.v, at.left_out + 1), at.equal**0.5)  # (h, m', d) F A3 v
        landmark_values = _scale_first(at.inverse @ summary, at.equal**-0.5)
        if self.first_rows:
            q, v = (at.with_padding(t) for t in (at.q, at.v))
            rows = slice(None, at.tokens)
        else:
            q, v = at.q, at.v
            rows = slice(-at.tokens, None)
        mixed = _attend(q[:, rows], at.k_mean, landmark_values, at.equal)  # (h, n, d) A1 (Z (A3 v))
        mixed = mixed + self.conv(v.unsqueeze(0)).squeeze(0)[:, rows]
        out: Tensor = self.dropout(self.out(mixed.transpose(0, 1).flatten(1)))  # (n, dim)
        return out

    def attention_of(self, at: Landmarked, rows: Tensor) -> Tensor:
        """(h, len(rows), n) weights A1 Z A3 with which the results at `rows` see the n tokens; may be negative."""
        q = at.with_padding(at.q) if self.first_rows else at.q[:, -at.tokens :]
        weights = at.q.new_empty(self.heads, len(rows), at.tokens)
        for head in range(self.heads):  # one (m', p) softmax at a time
            near = _weights(q[head, rows], at.k_mean[head], at.equal)  # (rows, m')
            far = _weights(at.q_mean[head], at.k[head], at.left_out + 1)[:, -at.tokens :]  # (m', n)
            near = _scale_first(near.T, at.equal**-0.5).T  # A1 F^T
            weights[head] = (near @ at.inverse[head]) @ _scale_first(far, at.equal**0.5)
        return weights


def pseudo_inverse(a: Tensor, iterations: int, equal: int = 1) -> Tensor:
    """Approximate pseudo-inverse of (h, m, m) by the third-order iteration of the Nystromformer, folded.

    One scale for all heads: the starting point divides by the largest row sum and column sum over every head.

    Args:
        a: (h, m', m') non-negative matrices; the first row is one of c equal rows, the first column the sum of c equal
            columns.
        iterations: how often to improve the starting point.
        equal: c.

    Returns:
        (h, m', m') Z'; with `equal` = 1, Z itself.
    """
    column_sums = _scale_first(a, equal).sum(dim=-2, keepdim=True)  # (h, 1, m'), the first c of them added up
    largest_column = _scale_first(column_sums.transpose(-1, -2), 1 / equal).max()
    scale = a.sum(dim=-1).max() * largest_column
    a = _scale_first(_scale_first(a, equal**0.5).transpose(-1, -2), equal**-0.5).transpose(-1, -2)  # F A2 F^T
    z = a.transpose(-1, -2) / scale
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        y = a @ z
        z = 0.25 * z @ (13 * eye - y @ (15 * eye - y @ (7 * eye - y)))
    return z


def _attend(q: Tensor, k: Tensor, v: Tensor, times: int) -> Tensor:
    """softmax(q k^T) v per head, without keeping the softmax; the first key and value stand for `times` equal ones."""
    bias = None if times == 1 else _first_counts(k, times)[None, None, None]  # (1, 1, 1, keys)
    return scaled_dot_product_attention(
        q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), attn_mask=bias, scale=1.0
    ).squeeze(0)


def _weights(q: Tensor, k: Tensor, times: int) -> Tensor:
    """softmax(q k^T), whose first column is the sum of `times` equal ones."""
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores if times == 1 else scores + _first_counts(k, times), dim=-1)


def _first_counts(k: Tensor, times: int) -> Tensor:
    """(keys,) to be added to scores so that the first key counts `times` times."""
    bias = k.new_zeros(k.shape[-2])
    bias[0] = log(times)
    return bias


def _scale_first(x: Tensor, factor: float) -> Tensor:
    """(..., rows, columns) with the first row multiplied."""
    return x if factor == 1 else torch.cat([x[..., :1, :] * factor, x[..., 1:, :]], dim=-2)
