"""Nystrom attention: softmax attention in time and memory linear in the number of tokens.

    n  tokens      m  landmarks      l = ceil(n / m)  tokens per landmark      h  heads      d  width of a head
    q~, k~         landmarks: means of l consecutive queries, keys
    A1 = softmax(q k~^T)  (n, m)     A2 = softmax(q~ k~^T)  (m, m)     A3 = softmax(q~ k^T)  (m, n)
    Z              approximate pseudo-inverse of A2

The result is A1 Z A3 v plus a depthwise convolution of v along the tokens. The product is taken from the right, so that
nothing larger than (n, d) per head outlives its step. Tokens are padded with zeros on the left to l * m rows; the
padding is not masked: it counts in the landmarks and in the softmax denominators, as in the original.

A small bag has many landmarks of padding alone. They are all zero, so their rows and columns in A2 are equal, and the
pseudo-inverse is exactly that of a smaller matrix in which they are one: with c equal landmarks first, F = (their sum
/ sqrt(c), the others) and A2' = F A2 F^T, Z = F^T Z' F. A bag of 65 tiles inverts 66 x 66 instead of 256 x 256.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from marble.errors import InputError


@dataclass(frozen=True)
class Landmarked:
    """Queries, keys and values of one call with their landmarks; p = l * m padded tokens."""

    q: Tensor  # (h, p, d), scaled by d^-1/2
    k: Tensor  # (h, p, d)
    v: Tensor  # (h, p, d)
    q_mean: Tensor  # (h, m, d)
    k_mean: Tensor  # (h, m, d)
    inverse: Tensor  # (h, m - c + 1, m - c + 1) Z'
    equal: int  # c: the first c landmarks are equal
    tokens: int  # n: the last n of the p rows are real

    def folded(self, by_landmark: Tensor) -> Tensor:
        """F x: (..., m, d) one row per landmark -> (..., m - c + 1, d); the first c rows are equal."""
        first = by_landmark[..., self.equal - 1 : self.equal, :] * self.equal**0.5
        return torch.cat([first, by_landmark[..., self.equal :, :]], dim=-2)

    def unfolded(self, by_landmark: Tensor) -> Tensor:
        """F^T x: (..., m - c + 1, d) -> (..., m, d)."""
        first = by_landmark[..., :1, :] / self.equal**0.5
        return torch.cat([first.expand(*first.shape[:-2], self.equal, -1), by_landmark[..., 1:, :]], dim=-2)


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
        padded = pad(x, (0, 0, group * m - n, 0))  # (p, dim)
        q, k, v = self.qkv(padded).view(group * m, 3, self.heads, self.width).permute(1, 2, 0, 3)  # each (h, p, d)
        q = q * self.width**-0.5
        q_mean, k_mean = (t.reshape(self.heads, m, group, self.width).mean(dim=2) for t in (q, k))  # (h, m, d)
        between = torch.softmax(q_mean @ k_mean.transpose(1, 2), dim=-1)  # (h, m, m) A2
        equal = max((group * m - n) // group, 1)  # c
        return Landmarked(q, k, v, q_mean, k_mean, pseudo_inverse(between, self.iterations, equal), equal, n)

    def mix(self, at: Landmarked) -> Tensor:
        summary = at.folded(_attend(at.q_mean, at.k, at.v))  # F A3 v
        mixed = _attend(at.q, at.k_mean, at.unfolded(at.inverse @ summary))  # (h, p, d) A1 (Z (A3 v))
        mixed = mixed + self.conv(at.v.unsqueeze(0)).squeeze(0)
        rows = mixed[:, : at.tokens] if self.first_rows else mixed[:, -at.tokens :]  # (h, n, d)
        out: Tensor = self.dropout(self.out(rows.transpose(0, 1).flatten(1)))  # (n, dim)
        return out

    def attention_of(self, at: Landmarked, rows: Tensor) -> Tensor:
        """(h, len(rows), n) weights A1 Z A3 with which the results at `rows` see the n tokens; may be negative."""
        first = 0 if self.first_rows else at.q.shape[1] - at.tokens
        weights = at.q.new_empty(self.heads, len(rows), at.tokens)
        for head in range(self.heads):  # one (m, p) softmax at a time
            near = torch.softmax(at.q[head, first + rows] @ at.k_mean[head].T, dim=-1)  # (rows, m) of A1
            far = torch.softmax(at.q_mean[head] @ at.k[head].T, dim=-1)[:, -at.tokens :]  # (m, n) of A3
            weights[head] = (at.folded(near.T).T @ at.inverse[head]) @ at.folded(far)
        return weights


def pseudo_inverse(a: Tensor, iterations: int, equal: int = 1) -> Tensor:
    """Approximate pseudo-inverse of (h, m, m) by the third-order iteration of the Nystromformer, folded.

    One scale for all heads: the starting point divides by the largest row sum and column sum over every head.

    Args:
        a: non-negative matrices.
        iterations: how often to improve the starting point.
        equal: c, the first c rows are equal and so are the first c columns.

    Returns:
        (h, m - c + 1, m - c + 1) Z'; with `equal` = 1, Z itself.
    """
    scale = a.sum(dim=-1).max() * a.sum(dim=-2).max()
    fold = torch.ones(a.shape[-1] - equal + 1, dtype=a.dtype, device=a.device)
    fold[0] = equal**0.5
    a = a[:, equal - 1 :, equal - 1 :] * fold * fold[:, None]
    z = a.transpose(-1, -2) / scale
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        y = a @ z
        z = 0.25 * z @ (13 * eye - y @ (15 * eye - y @ (7 * eye - y)))
    return z


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T) v per head, without keeping the softmax."""
    return scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), scale=1.0).squeeze(0)
