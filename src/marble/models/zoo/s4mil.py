"""S4-MIL: embedding, LayerNorm, one S4D layer over the tokens in raster order, maximum over tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag
from marble.errors import InputError
from marble.models.base import BagModel, Output
from marble.models.parts.attention import token_embedding
from marble.models.parts.ranges import Count
from marble.models.recipe import Recipe
from marble.models.ssm.s4d import S4D


class S4MIL(BagModel):
    """S4-MIL. Its attention is each token's share of the pooled vector: the channels whose maximum it holds.

    Args:
        dim, outputs, level: see `BagModel`.
        hidden: width of the embedded tokens.
        state: real size of each channel's state (two per conjugate pair).
    """

    # The order matters, but the authors' raster order is part of the method: a prediction uses it as it is.
    order_sensitive: ClassVar[bool] = False
    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="lookahead-adam",
        lr=2e-4,
        weight_decay=1e-5,
        schedule="constant",
        warmup=0,
        epochs=200,
        patience=10,
        select_by="loss",
        clip=None,
        class_loss="cross-entropy-of-probabilities",
        decay_exempt=False,
    )
    reference_names: ClassVar[Mapping[str, str]] = {
        "fc1.": "embed.",
        "s4_block.0.": "norm.",
        "s4_block.1.": "s4d.",
        "s4_block.1.output_linear.0.": "s4d.mix.",
        "fc2.": "classifier.",
    }

    def __init__(self, dim: int, outputs: int, level: int = -1, hidden: Count = 512, state: Count = 32) -> None:
        super().__init__(dim, outputs, level)
        if state < 2 or state % 2:
            raise InputError(f"state must be even and at least 2, got {state}")
        self.embed = token_embedding(dim, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.s4d = S4D(hidden, state)
        self.classifier = nn.Linear(hidden, outputs)

    def encode(self, x: Tensor) -> Tensor:
        """(T, D) -> (T, hidden) tokens that are pooled."""
        tokens: Tensor = self.s4d(self.norm(self.embed(x)))
        return tokens

    def forward(self, bag: Bag) -> Output:
        h = self.encode(self.tokens(bag))
        pooled, winner = h.max(dim=0)  # (hidden,)
        won = torch.zeros(len(h), dtype=torch.int64, device=h.device).index_add_(0, winner, torch.ones_like(winner))
        share = won.to(h.dtype) / len(winner)
        return Output(self.classifier(pooled), pooled, share, self.level_of(bag))

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        return tensors["fc1.0.weight"].shape[1], tensors["fc2.weight"].shape[0]
