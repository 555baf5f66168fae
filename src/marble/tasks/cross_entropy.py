"""Cross-entropy and its relatives: the losses of classification, one slide at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional

from marble.errors import InputError, RunError
from marble.targets import Target
from marble.tasks.criterion import Criterion, JointLoss
from marble.tasks.metric import Metric, Undefined, finite_scores

if TYPE_CHECKING:
    from marble.tasks.classification import Classification

ClassLoss: TypeAlias = Literal["cross-entropy", "multi-label-bce", "cross-entropy-of-probabilities", "bernoulli"]
LOSSES: tuple[ClassLoss, ...] = get_args(ClassLoss)
ClassWeights: TypeAlias = Literal["none", "balanced"] | tuple[float, ...]
#: probabilities nearer to 0 or 1 than this count as this far away, in the loss "bernoulli"
BERNOULLI_CLAMP = 1e-5


class ClassCriterion(Criterion):
    """Each slide's loss times the weight of its class."""

    has_intercept: ClassVar[bool] = True

    def __init__(self, task: Classification, truth: Mapping[str, int]) -> None:
        self._task = task
        self._truth = dict(truth)
        self.weights = _class_weights(task, list(truth.values()))  # (K,) float64

    def loss(self, slide_id: str, logits: Tensor, stream: str = "main") -> Tensor:
        if slide_id not in self._truth:
            raise InputError("not one of the training slides of this criterion", where=slide_id)
        smoothing = 0.0 if stream == "main" else self._task.side_label_smoothing
        return self._losses(logits[None], torch.tensor([self._truth[slide_id]]), smoothing)[0]

    def joint_loss(self, slide_ids: Sequence[str]) -> JointLoss:
        if self._task.loss == "cross-entropy-of-probabilities":
            raise RunError(
                f"the loss '{self._task.loss}' is not convex, so no linear term can be solved for it",
                hint="Set linear_term = false, or take another class_loss",
            )
        truth = torch.tensor([self._truth[slide_id] for slide_id in slide_ids])
        return lambda logits: self._losses(logits, truth).sum()

    def held_out_loss(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> JointLoss:
        truth = torch.tensor([self._task.index(target, where=slide) for slide, target in targets.items()])
        return lambda logits: self._losses(logits, truth).sum()

    def validation_loss(self, targets: Sequence[Target], logits: Tensor) -> Metric:
        """Mean over cases, weighted as in training."""
        if not targets:
            return Undefined("no cases")
        truth = torch.tensor([self._task.index(target) for target in targets])
        losses = self._losses(logits.detach().double().cpu(), truth)
        return float(finite_scores(losses.numpy(), "validation loss").mean())

    def _losses(self, logits: Tensor, truth: Tensor, smoothing: float = 0.0) -> Tensor:
        """(n, outputs), (n,) -> (n,)"""
        if logits.shape != (len(truth), self._task.outputs):
            raise InputError(f"logits must be ({len(truth)}, {self._task.outputs}), got {tuple(logits.shape)}")
        truth = truth.to(logits.device)
        # Weighted here and not by `weight=`: torch divides by the weights' sum, which cancels the weight of one slide.
        weight = self.weights.to(logits)[truth]
        if self._task.loss == "multi-label-bce":
            asked = functional.one_hot(truth, self._task.outputs).to(logits)
            return weight * functional.binary_cross_entropy_with_logits(logits, asked, reduction="none").mean(dim=1)
        if self._task.loss == "bernoulli":
            asked = truth[:, None] if self._task.outputs == 1 else functional.one_hot(truth, self._task.outputs)
            p = torch.sigmoid(logits).clamp(BERNOULLI_CLAMP, 1 - BERNOULLI_CLAMP)
            return weight * functional.binary_cross_entropy(p, asked.to(p), reduction="none").mean(dim=1)
        if self._task.loss == "cross-entropy-of-probabilities":
            logits = torch.softmax(logits, dim=1)
        return weight * functional.cross_entropy(logits, truth, reduction="none", label_smoothing=smoothing)


def _class_weights(task: Classification, truth: list[int]) -> Tensor:
    if task.class_weights in ("none", None):
        return torch.ones(len(task.classes), dtype=torch.float64)
    if isinstance(task.class_weights, tuple):
        return torch.tensor(task.class_weights, dtype=torch.float64)
    counts = torch.bincount(torch.tensor(truth, dtype=torch.int64), minlength=len(task.classes))
    for name, count in zip(task.classes, counts.tolist(), strict=True):
        if count == 0:
            raise InputError(
                f"no training slide of class '{name}', so it has no balanced weight",
                hint='Split again stratified by label, drop the class, or set class_weights = "none"',
            )
    return len(truth) / (len(task.classes) * counts.double())
