"""ViT-4K of HIPT (Chen et al. 2022): one vector for a region of 16 x 16 tile embeddings.

Modules carry the names of the original (those of DINO's vision transformer), so pretrained weights fit as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention

from marble.errors import InputError

#: wrappers and training heads that published checkpoints may carry
_WRAPPERS = ("module.", "backbone.")
_HEAD = "head."
_PRETRAINED_SIDE = 14  # pretraining saw crops of 14 x 14 tiles


class ViT4K(nn.Module):
    """(B, rows, cols, dim) grids of tile embeddings -> (B, hidden) class tokens and their last attention.

    Args:
        dim: width of a tile embedding.
        hidden: width of the transformer.
        depth: number of blocks.
        heads: of each block.
    """

    def __init__(self, dim: int = 384, hidden: int = 192, depth: int = 6, heads: int = 6) -> None:
        super().__init__()
        if hidden % heads:
            raise InputError(f"hidden {hidden} is not a multiple of {heads} heads")
        self.phi = nn.Sequential(nn.Linear(dim, hidden), nn.GELU())
        self.cls_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.pos_embed = nn.Parameter(torch.zeros(1, _PRETRAINED_SIDE**2 + 1, hidden))
        self.blocks = nn.ModuleList(VitBlock(hidden, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(hidden, eps=1e-6)
        for parameter in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, grids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, hidden), and without gradient (B, rows * cols): how the class token attends in the last block."""
        rows, cols = grids.shape[1:3]
        x = self.phi(grids.flatten(1, 2))  # (B, rows * cols, hidden)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self._positions(rows, cols)
        attention = x.new_empty(0)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, VitBlock)
            if index == len(self.blocks) - 1:
                attention = block.class_attention(x)
            x = block(x)
        return self.norm(x[:, 0]), attention

    def _positions(self, rows: int, cols: int) -> Tensor:
        """(1, 1 + rows * cols, hidden) position embeddings, resized from the grid they were trained on.

        The scale factors have 0.1 added to the size, as in the original: it shifts the sampling points a little.
        """
        side = isqrt(self.pos_embed.shape[1] - 1)
        if rows == cols == side:
            return self.pos_embed
        grid = self.pos_embed[:, 1:].view(1, side, side, -1).permute(0, 3, 1, 2)
        factor = ((rows + 0.1) / side, (cols + 0.1) / side)
        grid = interpolate(grid, scale_factor=factor, mode="bicubic")  # (1, hidden, rows, cols)
        return torch.cat([self.pos_embed[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)

    def load_pretrained(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a ViT-4K state dict with the original names; wrapper prefixes and the pretraining head are dropped."""
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            for wrapper in _WRAPPERS:
                name = name.removeprefix(wrapper)
            if not name.startswith(_HEAD):
                found[name] = tensor
        try:
            self.load_state_dict(found)
        except RuntimeError as error:
            raise InputError(f"weights do not fit ViT-4K: {error}", hint="Give its dim, depth and heads") from None


class VitBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = SelfAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return torch.add(x, self.mlp(self.norm2(x)))

    @torch.no_grad()
    def class_attention(self, x: Tensor) -> Tensor:
        """(B, n - 1) attention of the class token to the others, mean over heads."""
        q, k, _ = self.attn.split(self.norm1(x))
        weights = torch.softmax(q[:, :, :1] @ k.transpose(2, 3) * q.shape[-1] ** -0.5, dim=-1)  # (B, heads, 1, n)
        return weights[:, :, 0, 1:].mean(dim=1)


class SelfAttention(nn.Module):
    """Multi-head self-attention with biases."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v, each (B, heads, n, dim / heads)."""
        b, n, dim = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        mixed = scaled_dot_product_attention(*self.split(x))  # (B, heads, n, dim / heads)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """Two layers, four times as wide inside."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(torch.nn.functional.gelu(self.fc1(x)))
        return out
