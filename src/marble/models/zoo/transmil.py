"""TransMIL (Shao et al. 2021): two Nystrom-attention layers with a convolutional position encoding between them.

    N  tokens of the bag      s = ceil(sqrt N)      n = s^2 + 1  with the class token in front

The first s^2 - N tokens are appended again to fill the s x s grid, on which positions are encoded. The grid is made of
the tokens' order, not of their places in the slide. The original takes the order of its feature files; here it is
always row by row, so the order in which a bag was stored cannot matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from marble.bags.bag import Bag, cell_keys
from marble.models.base import BagModel, Output
from marble.models.parts.nystrom import Landmarked, NystromAttention
from marble.models.parts.ranges import Count, Rate
from marble.models.recipe import Recipe


class TransMIL(BagModel):
    """Slide logits from the class token.

    Args:
        dim: width of the tokens.
        outputs: number of logits.
        level: which level to read.
        hidden: width inside the model; heads are hidden / 8 wide, landmarks are hidden / 2.
        dropout: after each attention's output projection.
        nystrom_bug: reproduce nystrom-attention 0.0.9, the version the authors pinned: after padding on the left it
            returns the first rows instead of the last, so the class token receives a padding row. It always does:
            s^2 + 1 is no multiple of 4, so 256 landmarks always need padding.
    """

    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="lookahead-radam",
        lr=2e-4,
        weight_decay=1e-5,
        schedule="constant",
        warmup=0,
        epochs=200,
        patience=10,
        select_by="loss",
        accumulate=2,
        clip=None,
        precision="mixed-float16",
    )
    reference_names: ClassVar[Mapping[str, str]] = {
        "_fc1.0.": "embed.",
        "_fc2.": "head.",
        "pos_layer.proj.": "positions.conv7.",
        "pos_layer.proj1.": "positions.conv5.",
        "pos_layer.proj2.": "positions.conv3.",
        "layer1.attn.to_qkv.": "layer1.attention.qkv.",
        "layer1.attn.to_out.0.": "layer1.attention.out.",
        "layer1.attn.res_conv.": "layer1.attention.conv.",
        "layer2.attn.to_qkv.": "layer2.attention.qkv.",
        "layer2.attn.to_out.0.": "layer2.attention.out.",
        "layer2.attn.res_conv.": "layer2.attention.conv.",
    }

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        hidden: Count = 512,
        dropout: Rate = 0.1,
        nystrom_bug: bool = False,
    ) -> None:
        super().__init__(dim, outputs, level)
        self.embed = nn.Linear(dim, hidden)
        self.cls_token = nn.Parameter(torch.randn(1, 1, hidden))
        self.layer1 = AttentionLayer(hidden, dropout, nystrom_bug)
        self.positions = GridPositions(hidden)
        self.layer2 = AttentionLayer(hidden, dropout, nystrom_bug)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, outputs)

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        return tensors["_fc1.0.weight"].shape[1], tensors["_fc2.weight"].shape[0]

    def forward(self, bag: Bag) -> Output:
        order = torch.argsort(cell_keys(self.pick(bag).cells))
        h = torch.relu(self.embed(self.tokens(bag)))[order]  # (N, hidden)
        total = len(h)
        side = isqrt(total - 1) + 1  # s
        h = torch.cat([self.cls_token[0], h, h[: side**2 - total]])  # (n, hidden)
        h, _ = self.layer1(h)
        h = self.positions(h, side)
        h, seen = self.layer2(h)
        embedding = self.norm(h[0])  # (hidden,)
        attention = torch.empty_like(h[:total, 0]).index_copy(0, order, self._class_attention(seen, total))
        return Output(self.head(embedding), embedding, attention, self.level_of(bag))

    @torch.no_grad()
    def _class_attention(self, seen: Landmarked, total: int) -> Tensor:
        """(N,) size of the weight with which the class token sees each token in the last layer.

        Nystrom weights may be negative: their mean over heads is taken by size. A token that also fills up the grid
        gets the sum of its copies.
        """
        first = torch.zeros(1, dtype=torch.long, device=seen.q.device)
        weight = self.layer2.attention.attention_of(seen, first).mean(dim=0)[0, 1:].abs()  # (s^2,)
        copies = len(weight) - total
        weight = torch.cat([weight[:copies] + weight[total:], weight[copies:total]])  # (N,)
        weight = weight + torch.finfo(weight.dtype).tiny  # all weights zero: uniform
        return weight / weight.sum()


class AttentionLayer(nn.Module):
    """x + attention(norm(x)), and the landmarks it used."""

    def __init__(self, dim: int, dropout: float, nystrom_bug: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = NystromAttention(dim, landmarks=dim // 2, dropout=dropout, first_rows=nystrom_bug)

    def forward(self, x: Tensor) -> tuple[Tensor, Landmarked]:
        landmarked = self.attention.project(self.norm(x))
        return x + self.attention.mix(landmarked), landmarked


class GridPositions(nn.Module):
    """Positions from three depthwise convolutions (7x7, 5x5, 3x3) over the grid of tokens; the class token passes by.

    Convolutions add up, and so do their kernels: the three and the identity are summed into one 7x7 kernel first.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv7 = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.conv5 = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.conv3 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor, side: int) -> Tensor:
        identity = pad(x.new_ones(1, 1, 1, 1), (3, 3, 3, 3))
        kernel = self.conv7.weight + pad(self.conv5.weight, (1, 1, 1, 1)) + pad(self.conv3.weight, (2, 2, 2, 2))
        assert self.conv7.bias is not None
        assert self.conv5.bias is not None
        assert self.conv3.bias is not None
        bias = self.conv7.bias + self.conv5.bias + self.conv3.bias
        dim = x.shape[1]
        grid = x[1:].T.view(1, dim, side, side)
        grid = conv2d(grid, kernel + identity, bias, padding=3, groups=dim)  # (1, dim, s, s)
        return torch.cat([x[:1], grid.view(dim, -1).T])
