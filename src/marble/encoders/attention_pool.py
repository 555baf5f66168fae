"""CONCH v1.5's last step: one learned query that attends to all tokens; and its position grid at a larger input."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional


class AttentionPool(nn.Module):
    """Multi-head cross-attention of one learned query to (n, t, context_dim) tokens."""

    def __init__(self, dim: int, context_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.randn(1, dim))
        self.ln_q, self.ln_k = nn.LayerNorm(dim), nn.LayerNorm(context_dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        n, t, _ = tokens.shape
        query = self.to_q(self.ln_q(self.query))  # (1, dim)
        key, value = self.to_kv(self.ln_k(tokens)).chunk(2, dim=-1)  # (n, t, dim) each
        q = query.view(1, 1, self.heads, -1).expand(n, -1, -1, -1).transpose(1, 2)  # (n, heads, 1, dim / heads)
        k = key.view(n, t, self.heads, -1).transpose(1, 2)  # (n, heads, t, dim / heads)
        v = value.view(n, t, self.heads, -1).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, k, v)  # (n, heads, 1, dim / heads)
        pooled: Tensor = self.to_out(mixed.transpose(1, 2).flatten(1))  # (n, dim)
        return pooled


def larger_positions(state: Mapping[str, Tensor], key: str, rows: int) -> Mapping[str, Tensor]:
    """Stretch position embeddings (1, 1 + s * s, d) to a grid of rows x rows, the class token's kept as it is.

    The published network was run with a stretch factor of (rows + 0.1) / s, so the same factor is used here.
    """
    positions = state.get(key)
    if positions is None or positions.shape[1] == 1 + rows * rows:
        return state
    side = round((positions.shape[1] - 1) ** 0.5)
    grid = positions[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)  # (1, d, s, s)
    factor = (rows + 0.1) / side
    grid = functional.interpolate(grid, scale_factor=(factor, factor), mode="bicubic")  # (1, d, rows, rows)
    stretched = torch.cat([positions[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
    return {**state, key: stretched}
