"""CLAM: attention pooling with an instance loss that clusters the most and the least attended tiles (Lu et al., 2021).

Of the slide's class, the `k_sample` most attended tiles are taken as positive evidence and the `k_sample` least
attended ones as negative; a small classifier per class must tell them apart. The loss of a step is
`bag_weight` * bag loss + (1 - `bag_weight`) * instance loss. The instance loss needs a class label, so a survival
model has none, and its instance classifiers stay as they were drawn.

Bags smaller than the original accepts: it picks top and bottom tiles independently, so they overlap below
2 * `k_sample` tiles (kept), and fails below `k_sample`. Here such a bag gives all of its N tiles to both sides
(`k_sample` = N), and a warning says so once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from marble.bags.bag import Bag
from marble.errors import InputError
from marble.models.base import BagModel, Output
from marble.models.parts.attention import GatedAttention, of_predicted, token_embedding
from marble.models.parts.ranges import Count, Rate
from marble.models.recipe import Recipe
from marble.specs import unknown_choice

Size = Literal["small", "big"]
InstanceLoss = Literal["svm", "cross-entropy"]

HIDDEN = 512
ATTENTION_DIM: dict[Size, int] = {"small": 256, "big": 384}
#: the original puts this dropout into the attention branches whenever the embedding has any
ATTENTION_DROPOUT = 0.25
#: rows whose best logit leads by this much take the maximum instead of the log-sum-exp
HARD_MARGIN = math.log(1000)


def smooth_top1_svm(logits: Tensor, targets: Tensor) -> Tensor:
    """Smooth top-1 SVM loss with margin 1 and temperature 1: the mean over rows of logsumexp_c(x_c + [c != y] - x_y).

    Args:
        logits: (n, C).
        targets: (n,) class of each row.
    """
    margin = 1 - functional.one_hot(targets, logits.shape[1]).to(logits.dtype)
    gap = logits + margin - logits.gather(1, targets[:, None])  # (n, C)
    best = logits.topk(2, dim=1).values
    hard = best[:, 0] - best[:, 1] >= HARD_MARGIN
    return torch.where(hard, gap.max(dim=1).values, torch.logsumexp(gap, dim=1)).mean()


class CLAM(BagModel):
    """What CLAM-SB and CLAM-MB share; initialised by PyTorch's defaults, as the original is since April 2024.

    Args:
        gated: tanh branch times sigmoid branch, or the tanh branch alone.
        size: width of the attention branches, "small" (256) or "big" (384).
        dropout: of the embedding; if it is not zero, the attention branches get a fixed dropout of 0.25.
        k_sample: how many tiles the instance loss takes from either end of the attention.
        subtyping: classes exclude each other: the top tiles are negatives for every other class.
        instance_loss: "svm" (smooth top-1 SVM) or "cross-entropy".
        bag_weight: share of the bag loss in the total.
    """

    heads_per_class: ClassVar[bool]
    output_per_class: ClassVar[bool] = True
    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=2e-4, weight_decay=1e-5, schedule="constant", warmup=0, epochs=200, patience=20,
        patience_from=50, select_by="loss", clip=None, sampling="weighted", decay_exempt=False,
    )  # fmt: skip
    # The ungated net's last layer is number 2 or 3, depending on whether it was built with dropout.
    reference_names: ClassVar[Mapping[str, str]] = {
        "attention_net.0.": "embed.0.",
        "attention_net.3.attention_a.0.": "attention.value.",
        "attention_net.3.attention_b.0.": "attention.gate.",
        "attention_net.3.attention_c.": "attention.score.",
        "attention_net.3.module.0.": "attention.value.",
        "attention_net.3.module.2.": "attention.score.",
        "attention_net.3.module.3.": "attention.score.",
    }
    reference_ignored: ClassVar[tuple[str, ...]] = ("instance_loss_fn.",)

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        gated: bool = True,
        size: Size = "small",
        dropout: Rate = 0.25,
        k_sample: Count = 8,
        subtyping: bool = False,
        instance_loss: InstanceLoss = "svm",
        bag_weight: float = 0.7,
    ) -> None:
        super().__init__(dim, outputs, level)
        if size not in ATTENTION_DIM:
            raise InputError(unknown_choice("size", size, list(ATTENTION_DIM)))
        if instance_loss not in get_args(InstanceLoss):
            raise InputError(unknown_choice("instance_loss", instance_loss, list(get_args(InstanceLoss))))
        if k_sample < 1 or not 0 <= bag_weight <= 1:
            raise InputError(f"k_sample must be positive and bag_weight in [0, 1], got {k_sample} and {bag_weight}")
        self.k_sample, self.subtyping, self.bag_weight = k_sample, subtyping, bag_weight
        self.instance_criterion = smooth_top1_svm if instance_loss == "svm" else functional.cross_entropy
        self.embed = token_embedding(dim, HIDDEN, dropout=dropout)
        heads = outputs if self.heads_per_class else 1
        attention_dropout = ATTENTION_DROPOUT if dropout else 0.0
        self.attention = GatedAttention(HIDDEN, ATTENTION_DIM[size], heads, gated, attention_dropout)
        self.classifiers: nn.Module = (
            nn.ModuleList(nn.Linear(HIDDEN, 1) for _ in range(outputs))
            if self.heads_per_class
            else nn.Linear(HIDDEN, outputs)
        )
        self.instance_classifiers = nn.ModuleList(nn.Linear(HIDDEN, 2) for _ in range(outputs))

    def classify(self, z: Tensor) -> Tensor:
        """(heads, 512) slide vectors -> (outputs,) logits."""
        raise NotImplementedError

    def forward(self, bag: Bag) -> Output:
        h = self.embed(self.tokens(bag))  # (N, 512)
        a = torch.softmax(self.attention(h), dim=1)  # (heads, N)
        z = a @ h  # (heads, 512)
        logits = self.classify(z)
        shown = (
            (of_predicted(z, logits, dim=0), of_predicted(a, logits, dim=0)) if self.heads_per_class else (z[0], a[0])
        )
        return Output(
            logits=logits,
            embedding=shown[0],
            attention=shown[1],
            level=self.level_of(bag),
            logits_weight=self.bag_weight,
            hidden={"tokens": h, "attention": a.expand(self.outputs, -1)},
        )

    def extra_loss(self, out: Output, label: int) -> Tensor | None:
        return (1 - self.bag_weight) * self.instance_loss(out, label)

    def instance_loss(self, out: Output, label: int) -> Tensor:
        """The clustering loss before it is weighted: of the true class, and of the others if they exclude it."""
        h, a = out.hidden["tokens"], out.hidden["attention"]  # (N, 512), (outputs, N)
        k = min(self.k_sample, h.shape[0])
        if k < self.k_sample:
            warnings.warn(
                f"a bag has fewer than {self.k_sample} tiles: CLAM's instance loss takes all of them as both ends",
                stacklevel=2,
            )
        top, bottom = a[label].topk(k).indices, (-a[label]).topk(k).indices
        ones = torch.ones(k, dtype=torch.long, device=h.device)
        targets = torch.cat([ones, torch.zeros_like(ones)])
        total = self.instance_criterion(self.instance_classifiers[label](h[torch.cat([top, bottom])]), targets)
        if not self.subtyping:
            return total
        for other in range(self.outputs):
            if other != label:
                logits = self.instance_classifiers[other](h[a[other].topk(k).indices])  # (k, 2)
                total = total + self.instance_criterion(logits, torch.zeros_like(ones))
        return total / self.outputs


class CLAMSB(CLAM):
    """One attention for all classes."""

    heads_per_class: ClassVar[bool] = False

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.classifiers(z[0])
        return logits

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        return tensors["attention_net.0.weight"].shape[1], tensors["classifiers.weight"].shape[0]


class CLAMMB(CLAM):
    """One attention, one slide vector and one logit per class."""

    heads_per_class: ClassVar[bool] = True

    def classify(self, z: Tensor) -> Tensor:
        assert isinstance(self.classifiers, nn.ModuleList)
        return torch.cat([classifier(z_c) for classifier, z_c in zip(self.classifiers, z, strict=True)])

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        outputs = sum(key.startswith("classifiers.") and key.endswith(".weight") for key in tensors)
        return tensors["attention_net.0.weight"].shape[1], outputs
