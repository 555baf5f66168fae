"""Classification: one label per case out of a fixed list of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from marble.errors import InputError, SpecError
from marble.specs import unknown_choice
from marble.targets import Target
from marble.tasks import classification_metrics as scores
from marble.tasks.base import Criterion, Ints, Metric, Readout, Task, Undefined, finite_scores, stored_column

ClassLoss: TypeAlias = Literal["cross-entropy", "multi-label-bce", "cross-entropy-of-probabilities", "bernoulli"]
ClassWeights: TypeAlias = Literal["none", "balanced"] | tuple[float, ...] | None
LOSSES: tuple[ClassLoss, ...] = get_args(ClassLoss)
#: probabilities nearer to 0 or 1 than this count as this far away, in the loss "bernoulli"
BERNOULLI_CLAMP = 1e-5


@dataclass(frozen=True)
class Classification(Task):
    """Tell `classes` apart.

    Args:
        classes: names, at least two. Of two, the second is the positive one; kappa takes them as ordered grades.
        class_weights: weight of a slide's loss by its class: "none" (or None), "balanced" (inverse frequency among the
            training slides, so that their mean weight is 1), or one number per class.
        loss: "cross-entropy"; "multi-label-bce": one yes-or-no question per class (DSMIL);
            "cross-entropy-of-probabilities": cross-entropy that takes the softmax for logits, as S4-MIL was trained;
            "bernoulli": of two classes one output, the log-likelihood of its clamped sigmoid (ABMIL, CS-MIL); of more,
            one such question per class.
        side_label_smoothing: of the cross-entropy of a model's side predictions (HAG-MIL's coarse levels).
    """

    classes: tuple[str, ...]
    class_weights: ClassWeights = "none"
    loss: ClassLoss = "cross-entropy"
    side_label_smoothing: float = 0.0

    name: ClassVar[str] = "classification"
    select_by: ClassVar[str] = "auc"

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise SpecError(f"classes must be two or more different names, got {list(self.classes)}")
        if self.loss not in LOSSES:
            raise SpecError(unknown_choice("loss", self.loss, list(LOSSES)))
        if not 0 <= self.side_label_smoothing < 1:
            raise SpecError(f"side_label_smoothing must be at least 0 and below 1, got {self.side_label_smoothing}")
        if self.side_label_smoothing and self.loss != "cross-entropy":
            raise SpecError(f'side_label_smoothing needs loss = "cross-entropy", got "{self.loss}"')
        weights = self.class_weights
        if isinstance(weights, str) and weights not in ("none", "balanced"):
            raise SpecError(unknown_choice("class_weights", weights, ["none", "balanced", "one number per class"]))
        if isinstance(weights, tuple):
            usable = len(weights) == len(self.classes) and all(np.isfinite(w) and w > 0 for w in weights)
            if not usable:
                raise SpecError(f"class_weights needs {len(self.classes)} positive numbers, got {list(weights)}")

    @property
    def outputs(self) -> int:
        one_question = self.loss == "bernoulli" and len(self.classes) == 2
        return 1 if one_question else len(self.classes)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"p_{name}" for name in self.classes)

    def criterion(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> ClassCriterion:
        truth = {slide: self.index(target, where=slide) for slide, target in targets.items()}
        return ClassCriterion(self, truth)

    def readout(self, logits: Tensor) -> Readout:
        """One probability per class; they sum to 1.

        The softmax of the logits, except where they were trained as separate yes-or-no questions: then the sigmoids
        divided by their sum, since for those the softmax of perfect answers would be overconfident. Of a single
        question, the sigmoid is the probability of the second class.
        """
        values = logits.detach().double().cpu()
        finite_scores(values.numpy(), "logits")
        if values.shape != (self.outputs,):
            raise InputError(f"logits must be ({self.outputs},), got {tuple(values.shape)}")
        if self.outputs == 1:  # softmax(0, x) = (1 - sigmoid x, sigmoid x)
            answers = torch.cat([torch.zeros_like(values), values])
        elif self.loss in ("multi-label-bce", "bernoulli"):
            # softmax(log sigmoid) = sigmoid / sum of sigmoids, also where every sigmoid underflows
            answers = functional.logsigmoid(values)
        else:
            answers = values
        return dict(zip(self.columns, torch.softmax(answers, dim=0).tolist(), strict=True))

    def metrics(self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike]) -> dict[str, Metric]:
        """AUC (two classes: of the second; more: macro one-vs-rest), accuracy, balanced accuracy, macro F1, kappa.

        The class called is the one of largest probability, the first of equals.
        """
        truth: Ints = np.array([self.index(target) for target in targets], dtype=np.int64)
        p = np.stack([stored_column(readouts, name) for name in self.columns], axis=1)  # (n, K)
        if len(p) != len(truth):
            raise InputError(f"{len(truth)} targets but {len(p)} predictions")
        called: Ints = p.argmax(axis=1)
        return {
            "auc": scores.auc(truth, p, self.classes),
            "accuracy": scores.accuracy(truth, called),
            "balanced_accuracy": scores.balanced_accuracy(truth, called, self.classes),
            "f1": scores.macro_f1(truth, called, self.classes),
            "kappa": scores.quadratic_kappa(truth, called, self.classes),
        }

    def index(self, target: Target, where: str | None = None) -> int:
        """The position of a label in `classes`."""
        if not isinstance(target, str):
            raise InputError(f"a classification target is a class name, got {target!r}", where=where)
        if target not in self.classes:
            raise InputError(unknown_choice("class", target, list(self.classes)), where=where)
        return self.classes.index(target)


class ClassCriterion(Criterion):
    """Each slide's loss times the weight of its class."""

    def __init__(self, task: Classification, truth: Mapping[str, int]) -> None:
        self._task = task
        self._truth = dict(truth)
        self.weights = _class_weights(task, list(truth.values()))  # (K,) float64

    def loss(self, slide_id: str, logits: Tensor, stream: str = "main") -> Tensor:
        if slide_id not in self._truth:
            raise InputError("not one of the training slides of this criterion", where=slide_id)
        smoothing = 0.0 if stream == "main" else self._task.side_label_smoothing
        return self._losses(logits[None], torch.tensor([self._truth[slide_id]]), smoothing)[0]

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
