"""DSMIL: an instance stream picks the critical tile of every class, a bag stream attends to what resembles it
(Li et al., 2021), on one scale or on two.

Both streams are supervised: the loss is half the bag's and half that of the per-class maximum of the tiles' logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag, Level
from marble.errors import BagError, InputError
from marble.models.base import BagModel, Output, Side
from marble.models.parts.attention import of_predicted
from marble.models.parts.ranges import Rate
from marble.models.recipe import Recipe
from marble.specs import unknown_choice

Scales = Literal["single", "cat", "fusion"]
QUERY_DIM = 128
#: weight of the parent's token in `scales="fusion"`
FUSION_WEIGHT = 0.25


class DSMIL(BagModel):
    """c = Linear(x); A = softmax over tiles of q(x).q(critical tile) / sqrt(128); logits from all class vectors A^T v.

    The tokens enter raw: there is no hidden embedding, and every output sees every class's bag vector. Initialised as
    the original: orthogonal weights, zero biases. The attention given for heatmaps is that of the predicted class.

    Args:
        passing_v: values v = ReLU(Linear(dropout(x))) instead of the tokens themselves.
        linear_q: queries by one linear layer instead of Linear - ReLU - Linear - tanh.
        dropout: of the tokens on their way into `passing_v`.
        scales: "single"; or, of a tile at the model's level and its parent one level above, "cat": both tokens side
            by side (2 D wide), "fusion": the tile's token plus 0.25 times its parent's.
    """

    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=1e-4, betas=(0.5, 0.9), weight_decay=1e-3, schedule="cosine", lr_min=5e-6, warmup=0,
        epochs=50, patience=10, clip=None, class_loss="multi-label-bce", decay_exempt=False,
    )  # fmt: skip
    reference_names: ClassVar[Mapping[str, str]] = {
        "i_classifier.fc.0.": "instance_classifier.",
        "b_classifier.q.": "query.",
        "b_classifier.v.": "value.",
        "b_classifier.fcc.": "classifier.",
    }

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        passing_v: bool = False,
        linear_q: bool = False,
        dropout: Rate = 0.0,
        scales: Scales = "single",
    ) -> None:
        super().__init__(dim, outputs, level)
        if scales not in get_args(Scales):
            raise InputError(unknown_choice("scales", scales, list(get_args(Scales))))
        self.scales = scales
        width = 2 * dim if scales == "cat" else dim
        self.instance_classifier = nn.Linear(width, outputs)
        self.query: nn.Module = nn.Linear(width, QUERY_DIM)
        if not linear_q:
            self.query = nn.Sequential(self.query, nn.ReLU(), nn.Linear(QUERY_DIM, QUERY_DIM), nn.Tanh())
        self.value: nn.Module = nn.Identity()
        if passing_v:
            self.value = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU())
        self.classifier = nn.Conv1d(outputs, outputs, kernel_size=width)
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv1d):
                nn.init.orthogonal_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, bag: Bag) -> Output:
        x = self.scaled_tokens(bag)  # (N, W)
        c = self.instance_classifier(x)  # (N, outputs)
        strongest, critical = c.max(dim=0)  # (outputs,) of each class: its largest logit, and the tile that has it
        a = self.attend(x, critical)  # (N, outputs)
        b = a.T @ self.value(x)  # (outputs, W)
        logits = self.classifier(b)[:, 0]  # (outputs,)
        return Output(
            logits=logits,
            embedding=b.flatten(),
            attention=of_predicted(a, logits, dim=1),
            level=self.level_of(bag),
            side=(Side("instance-max", strongest, 0.5),),
            logits_weight=0.5,
        )

    def attend(self, x: Tensor, critical: Tensor) -> Tensor:
        """(N, outputs) attention of every class: softmax over tiles of their likeness to its critical tile."""
        q = self.query(x)  # (N, 128)
        # the tiles of a class side by side: softmax and the sum over tiles then read numbers in the order they lie in
        return torch.softmax(q[critical] / math.sqrt(QUERY_DIM) @ q.T, dim=1).T

    def levels_read(self, bag: Bag) -> tuple[Level, ...]:
        k = self.level_of(bag)
        if self.scales == "single":
            return (bag.levels[k],)
        if k == 0:
            raise BagError(
                f"scales='{self.scales}' joins tiles with their parents, but level {k} has none",
                where=bag.slide_id,
                hint="Use bags of two or more levels, or scales='single'",
            )
        return bag.levels[k - 1 : k + 1]

    def scaled_tokens(self, bag: Bag) -> Tensor:
        """(N, W) tokens of the model's level, joined with their parents' where the model reads two scales."""
        x = self.tokens(bag)
        if self.scales == "single":
            return x
        k = self.level_of(bag)
        coarse, fine = self.levels_read(bag)
        assert fine.parent is not None
        above = self.cast(coarse, bag, k - 1)[fine.parent]  # (N, D)
        return torch.cat([x, above], dim=1) if self.scales == "cat" else x + FUSION_WEIGHT * above

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        outputs, dim = tensors["i_classifier.fc.0.weight"].shape
        return dim, outputs
