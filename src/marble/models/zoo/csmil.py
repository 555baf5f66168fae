"""CS-MIL (Deng et al. 2022): every finest tile is seen at several scales around the same centre.

    e_k  embedding of a tile's view at level k      s_k  its scale weight, not normalised over scales
    tile = sum_k s_k e_k, then attention pooling over the tiles

The views of a tile are the tile and its ancestors. All scales share one embedding and one scoring net, so a coarse
token is embedded once, however many tiles lie below it.

The original groups tiles into k-means clusters, from which it samples about 24 tiles per training step; its attention
runs over the tiles of all clusters together, so the clusters do not enter the function. Here a step sees all tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from marble.bags.bag import Bag, Level
from marble.errors import InputError
from marble.models.base import BagModel, Output
from marble.models.parts.attention import GatedAttention
from marble.models.parts.ranges import Count, Rate
from marble.models.parts.tree import ancestors, finest_levels
from marble.models.recipe import Recipe


class CSMIL(BagModel):
    """Slide logits from tiles that combine their scales.

    Args:
        dim: width of the tokens.
        outputs: number of logits (the original has one, for a sigmoid).
        levels: how many of the bag's finest levels are a tile's views.
        hidden: width of the embedding.
        attention_dim: width inside the two scoring nets and the head.
        dropout: in the head.
    """

    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=5e-4, weight_decay=1e-4, schedule="constant", warmup=0, epochs=100, patience=100,
        select_by="loss", accumulate=4, accumulate_by="sum", clip=None, class_loss="bernoulli", decay_exempt=False,
    )  # fmt: skip
    reference_names: ClassVar[Mapping[str, str]] = {
        "embedding_net.0.": "embed.",
        "res_attention.0.": "scale_hidden.",
        "res_attention.2.": "scale_weight.",
        "attention.0.": "attention.value.",
        "attention.2.": "attention.score.",
        "fc6.0.": "head.0.",
        "fc6.3.": "head.3.",
    }

    def __init__(
        self,
        dim: int,
        outputs: int,
        levels: Count = 3,
        hidden: Count = 64,
        attention_dim: Count = 32,
        dropout: Rate = 0.5,
    ) -> None:
        super().__init__(dim, outputs)
        if levels < 1:
            raise InputError(f"levels must be at least 1, got {levels}")
        self.levels = levels
        self.embed = PointwiseConv(dim, hidden)
        self.scale_hidden = PointwiseConv(hidden, attention_dim)
        self.scale_weight = PointwiseConv(attention_dim, 1)
        self.attention = GatedAttention(hidden, attention_dim, gated=False)
        self.head = nn.Sequential(
            nn.Linear(hidden, attention_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(attention_dim, outputs)
        )

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        return tensors["embedding_net.0.weight"].shape[1], tensors["fc6.3.weight"].shape[0]

    def levels_read(self, bag: Bag) -> tuple[Level, ...]:
        return finest_levels(bag, self.levels)

    def forward(self, bag: Bag) -> Output:
        levels = self.levels_read(bag)
        first = bag.depth - len(levels)
        views = [
            self._weighted(self.cast(level, bag, first + k)) for k, level in enumerate(levels)
        ]  # each (T_k, hidden)
        tiles = torch.stack([view[index] for view, index in zip(views, ancestors(levels), strict=True)]).sum(dim=0)
        attention = torch.softmax(self.attention(tiles)[0], dim=0)  # (T,)
        embedding = attention @ tiles  # (hidden,)
        return Output(self.head(embedding), embedding, attention, bag.depth - 1)

    def _weighted(self, tokens: Tensor) -> Tensor:
        """(T_k, hidden) s_k e_k of every token of a level."""
        e = torch.relu(self.embed(tokens))
        s = self.scale_weight(torch.relu(self.scale_hidden(e)))  # (T_k, 1)
        return torch.mul(s, e)


class PointwiseConv(nn.Conv2d):
    """A 1x1 convolution applied to the last axis; its weight keeps four axes, so original checkpoints fit."""

    def __init__(self, dim: int, out: int) -> None:
        super().__init__(dim, out, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.flatten(1), self.bias)
