"""DTFD-MIL: the slide is split into pseudo-bags; a second tier classifies what a first tier distils from each
(Zhang et al., 2022).

Tier 1 is trained on the pseudo-bags, which all carry the slide's label; tier 2 on the distilled vectors. Tier 2 never
trains tier 1, so in training the distilled vectors are detached, and one backward pass with one Adam equals the
original's two with two. In evaluation they stay attached, so that gradients of the prediction reach the tokens.

The partition is that of the bag's order: training shuffles the bag first (`augment`), a prediction averages over
fixed orders (`order_sensitive`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from marble.bags.augment import shuffled
from marble.bags.bag import Bag
from marble.errors import InputError
from marble.models.base import BagModel, Output, Side
from marble.models.parts.attention import GatedAttention
from marble.models.parts.ranges import Count, CountFromZero
from marble.models.recipe import Recipe
from marble.specs import unknown_choice

Distill = Literal["afs", "maxs", "maxmins"]
CamClass = Literal["last", "predicted"]


class Residual(nn.Module):
    """x + ReLU(Linear(ReLU(Linear(x)))), without biases."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Linear(dim, dim, bias=False), nn.ReLU(), nn.Linear(dim, dim, bias=False), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.block(x)
        return x + branch


class Reduction(nn.Module):
    """ReLU(Linear(x)) without a bias, then residual blocks."""

    def __init__(self, dim: int, hidden: int, residual_blocks: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, hidden, bias=False)
        self.blocks = nn.Sequential(*(Residual(hidden) for _ in range(residual_blocks)))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.blocks(torch.relu(self.project(x)))  # (N, hidden)
        return h


class SecondTier(nn.Module):
    """Gated attention over the distilled vectors, and the slide's classifier."""

    def __init__(self, hidden: int, attention_dim: int, outputs: int) -> None:
        super().__init__()
        self.attention = GatedAttention(hidden, attention_dim)
        self.classifier = nn.Linear(hidden, outputs)


class FirstTier(NamedTuple):
    """Of each pseudo-bag g of N_g tiles."""

    attention: list[Tensor]  # (N_g,)
    logits: list[Tensor]  # (outputs,)
    cam: list[Tensor]  # (N_g, outputs)
    distilled: list[Tensor]  # (R_g, hidden) the rows that tier 2 sees


class DTFD(BagModel):
    """Two tiers of gated attention; initialised by PyTorch's defaults.

    The class activation map (CAM) of a tile is what it adds to its pseudo-bag's logits, without the bias. For
    heatmaps, `afs` has an exact attention: the weight with which a tile's vector enters the slide's, tier 1 times
    tier 2. `maxs` and `maxmins` look at a few tiles only; their score is the positive part of the CAM of the predicted
    class relative to the mean over classes, normalised to sum 1 (all tiles alike where no part is positive).

    Args:
        distill: what tier 2 sees of a pseudo-bag. "afs": its attention-weighted mean; "maxs": the tiles with the
            largest CAM; "maxmins": those with the largest and those with the smallest.
        groups: number of pseudo-bags; a bag with fewer tiles has one per tile.
        instances: how many tiles `maxs` takes of a pseudo-bag, and `maxmins` from either end.
        cam_class: class whose CAM (softmax over classes) ranks the tiles: the "last" as in the original, or the one
            that tier 1 predicts for the pseudo-bag. With a single output the CAM itself ranks.
        hidden: width of the reduced tokens.
        attention_dim: width of the attention branches.
        residual_blocks: after the reduction.
        keep_empty: of a bag with fewer tiles than groups, keep the empty pseudo-bags (zero vectors) as the original.
    """

    order_sensitive: ClassVar[bool] = True
    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=1e-4, weight_decay=1e-4, schedule="multistep", milestones=(100,), gamma=0.2, warmup=0,
        epochs=200, patience=200, choose_from=162, clip=5.0, clip_per_group=True, decay_exempt=False,
    )  # fmt: skip
    # The original's modules are called by their variables, or as its own checkpoints call them.
    reference_names: ClassVar[Mapping[str, str]] = {
        "dimReduction.fc1.": "reduce.project.",
        "dimReduction.resBlocks.": "reduce.blocks.",
        "dim_reduction.fc1.": "reduce.project.",
        "dim_reduction.resBlocks.": "reduce.blocks.",
        "attention.attention_V.0.": "attention.value.",
        "attention.attention_U.0.": "attention.gate.",
        "attention.attention_weights.": "attention.score.",
        "classifier.fc.": "classifier.",
        "attCls.attention.attention_V.0.": "second.attention.value.",
        "attCls.attention.attention_U.0.": "second.attention.gate.",
        "attCls.attention.attention_weights.": "second.attention.score.",
        "attCls.classifier.fc.": "second.classifier.",
        "att_classifier.attention.attention_V.0.": "second.attention.value.",
        "att_classifier.attention.attention_U.0.": "second.attention.gate.",
        "att_classifier.attention.attention_weights.": "second.attention.score.",
        "att_classifier.classifier.fc.": "second.classifier.",
    }

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        distill: Distill = "afs",
        groups: Count = 4,
        instances: Count = 1,
        cam_class: CamClass = "last",
        hidden: Count = 512,
        attention_dim: Count = 128,
        residual_blocks: CountFromZero = 0,
        keep_empty: bool = False,
    ) -> None:
        super().__init__(dim, outputs, level)
        if distill not in get_args(Distill):
            raise InputError(unknown_choice("distill", distill, list(get_args(Distill))))
        if cam_class not in get_args(CamClass):
            raise InputError(unknown_choice("cam_class", cam_class, list(get_args(CamClass))))
        if groups < 1 or instances < 1:
            raise InputError(f"groups and instances must be positive, got {groups} and {instances}")
        self.distill, self.groups, self.instances = distill, groups, instances
        self.cam_class, self.keep_empty = cam_class, keep_empty
        self.reduce = Reduction(dim, hidden, residual_blocks)
        self.attention = GatedAttention(hidden, attention_dim)
        self.classifier = nn.Linear(hidden, outputs)
        self.second = SecondTier(hidden, attention_dim, outputs)

    def augment(self, bag: Bag, rng: torch.Generator) -> Bag:
        return shuffled(bag, rng)

    def optimizer_groups(self) -> list[list[tuple[str, nn.Parameter]]]:
        """One group per module of the original, each clipped apart."""
        return [
            [(f"{name}.{key}", parameter) for key, parameter in getattr(self, name).named_parameters()]
            for name in ("reduce", "attention", "classifier", "second")
        ]

    def forward(self, bag: Bag) -> Output:
        first = self.first_tier(self.reduce(self.tokens(bag)))
        rows = torch.cat(first.distilled)  # (R, hidden)
        if self.training:
            rows = rows.detach()
        b = torch.softmax(self.second.attention(rows), dim=1)  # (1, R)
        z = (b @ rows)[0]  # (hidden,)
        logits = self.second.classifier(z)  # (outputs,)
        if self.distill == "afs":
            scores = torch.cat([b_g * a_g for b_g, a_g in zip(b[0], first.attention, strict=True)])  # (N,)
            if len(scores) < len(first.attention):  # empty pseudo-bags have a share too, but no tile to show it on
                scores = scores / scores.sum()
        else:
            scores = positive_part(torch.cat(first.cam), int(logits.argmax()))
        weight = 1 / len(first.logits)
        return Output(
            logits=logits,
            embedding=z,
            attention=scores,
            level=self.level_of(bag),
            side=tuple(Side(f"pseudo-bag-{g}", x, weight) for g, x in enumerate(first.logits)),
        )

    def first_tier(self, h: Tensor) -> FirstTier:
        """(N, hidden) reduced tokens -> what each pseudo-bag says and hands on."""
        found = FirstTier([], [], [], [])
        for h_g, e_g in zip(self.split(h), self.split(self.attention(h)[0]), strict=True):
            a_g = torch.softmax(e_g, dim=0)  # (N_g,)
            weighted = a_g[:, None] * h_g  # (N_g, hidden)
            z = weighted.sum(dim=0)  # (hidden,)
            logits = self.classifier(z)  # (outputs,)
            cam = weighted @ self.classifier.weight.T  # (N_g, outputs)
            found.attention.append(a_g)
            found.logits.append(logits)
            found.cam.append(cam)
            found.distilled.append(z[None] if self.distill == "afs" else h_g[self.chosen(cam, logits)])
        return found

    def split(self, x: Tensor) -> list[Tensor]:
        """Consecutive pseudo-bags of nearly equal size, the larger ones first."""
        return [part for part in torch.tensor_split(x, self.groups) if len(part) or self.keep_empty]

    def chosen(self, cam: Tensor, logits: Tensor) -> Tensor:
        """Indices of the pseudo-bag's tiles that go to tier 2, by the CAM (N_g, outputs) of one class."""
        target = -1 if self.cam_class == "last" else int(logits.argmax())
        ranking = cam[:, 0] if self.outputs == 1 else torch.softmax(cam, dim=1)[:, target]
        order = torch.sort(ranking, descending=True).indices
        t = self.instances
        return order[:t] if self.distill == "maxs" else torch.cat([order[:t], order[-t:]])

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        published = "dim_reduction.fc1.weight"
        first = tensors[published if published in tensors else "dimReduction.fc1.weight"]
        return first.shape[1], tensors["classifier.fc.weight"].shape[0]


def positive_part(cam: Tensor, target: int) -> Tensor:
    """(N,) scores >= 0 with sum 1: how much more a tile speaks for `target` than for the mean class."""
    evidence = cam[:, target] if cam.shape[1] == 1 else cam[:, target] - cam.mean(dim=1)
    positive = torch.relu(evidence)
    total = positive.sum()
    return positive / total if total > 0 else torch.full_like(positive, 1 / len(positive))
