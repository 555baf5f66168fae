"""ABMIL: the slide is the attention-weighted mean of its embedded tiles (Ilse et al., 2018, on features)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag
from marble.models.base import BagModel, Output
from marble.models.parts.attention import GatedAttention, token_embedding
from marble.models.parts.ranges import Count, Rate
from marble.models.recipe import Recipe


class ABMIL(BagModel):
    """h = act(W x); a = softmax over tiles of the (gated) attention score of h; logits = Linear(sum a h).

    Initialised by PyTorch's defaults, as the original is (its Xavier call is commented out).

    Args:
        gated: tanh branch times sigmoid branch, or the tanh branch alone.
        hidden: width of h.
        attention_dim: width of the attention branches.
        act: "relu" or "gelu".
        dropout: of h.
    """

    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=5e-4, weight_decay=1e-4, schedule="constant", warmup=0, epochs=20, patience=20,
        clip=None, class_loss="bernoulli", decay_exempt=False,
    )  # fmt: skip
    reference_names: ClassVar[Mapping[str, str]] = {
        "feature.0.": "embed.0.",
        "attention.0.": "attention.value.",
        "attention.2.": "attention.score.",
        "attention_V.0.": "attention.value.",
        "attention_U.0.": "attention.gate.",
        "attention_weights.": "attention.score.",
        "classifier.0.": "classifier.",
    }

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        gated: bool = True,
        hidden: Count = 512,
        attention_dim: Count = 128,
        act: str = "relu",
        dropout: Rate = 0.25,
    ) -> None:
        super().__init__(dim, outputs, level)
        self.embed = token_embedding(dim, hidden, act, dropout)
        self.attention = GatedAttention(hidden, attention_dim, gated=gated)
        self.classifier = nn.Linear(hidden, outputs)

    def forward(self, bag: Bag) -> Output:
        h = self.embed(self.tokens(bag))  # (N, hidden)
        a = torch.softmax(self.attention(h), dim=1)  # (1, N)
        z = (a @ h)[0]  # (hidden,)
        return Output(logits=self.classifier(z), embedding=z, attention=a[0], level=self.level_of(bag))

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        return tensors["feature.0.weight"].shape[1], tensors["classifier.0.weight"].shape[0]
