"""Mean and max pooling: every tile is classified, the slide's logits are the mean or the maximum of its tiles' logits.

It is the *logits* that are pooled, class by class, not the features; with `max`, different classes may therefore be
decided by different tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag
from marble.models.base import BagModel, Output
from marble.models.parts.attention import of_predicted, token_embedding
from marble.models.parts.ranges import Count, Rate
from marble.models.recipe import Recipe


class PooledLogits(BagModel):
    """What mean and max share: Linear(D, hidden) - act - dropout - Linear(hidden, outputs) for every tile.

    Initialised as the original: Xavier-normal weights, zero biases. There is no attention in these models; the score
    given for heatmaps is the softmax, over the tiles, of the tiles' logits of the predicted class. The embedding is
    the mean of the hidden layer.

    Args:
        hidden: width of the hidden layer.
        act: "relu" or "gelu".
        dropout: after the activation.
    """

    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=2e-4, weight_decay=1e-5, schedule="constant", warmup=0, epochs=200, patience=20,
        patience_from=50, select_by="loss", clip=None, survival_loss="nll", decay_exempt=False,
    )  # fmt: skip
    authors_survival_recipe: ClassVar[Recipe | None] = replace(
        authors_recipe, accumulate=32, select_by="metric", patience_from=40
    )
    # The original's last layer is number 2 or 3, depending on whether it was built with dropout.
    reference_names: ClassVar[Mapping[str, str]] = {
        "head.0.": "embed.0.",
        "head.2.": "classifier.",
        "head.3.": "classifier.",
    }

    def __init__(
        self, dim: int, outputs: int, level: int = -1, hidden: Count = 512, act: str = "relu", dropout: Rate = 0.25
    ) -> None:
        super().__init__(dim, outputs, level)
        self.embed = token_embedding(dim, hidden, act, dropout)
        self.classifier = nn.Linear(hidden, outputs)
        for layer in (self.embed[0], self.classifier):
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def pool(self, instance_logits: Tensor) -> Tensor:
        """(N, outputs) -> (outputs,)."""
        raise NotImplementedError

    def forward(self, bag: Bag) -> Output:
        h = self.embed(self.tokens(bag))  # (N, hidden)
        instance_logits = self.classifier(h)  # (N, outputs)
        logits = self.pool(instance_logits)
        return Output(
            logits=logits,
            embedding=h.mean(dim=0),
            attention=torch.softmax(of_predicted(instance_logits, logits, dim=1), dim=0),
            level=self.level_of(bag),
        )

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        last = "head.3.weight" if "head.3.weight" in tensors else "head.2.weight"
        return tensors["head.0.weight"].shape[1], tensors[last].shape[0]


class MeanMIL(PooledLogits):
    """Mean of the tiles' logits."""

    def pool(self, instance_logits: Tensor) -> Tensor:
        return instance_logits.mean(dim=0)


class MaxMIL(PooledLogits):
    """Maximum of the tiles' logits, class by class."""

    def pool(self, instance_logits: Tensor) -> Tensor:
        return instance_logits.max(dim=0).values
