"""Classification: one label per case out of a fixed list of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from marble.errors import InputError, SpecError
from marble.specs import unknown_choice
from marble.targets import Target, TargetKind
from marble.tasks import classification_metrics as scores
from marble.tasks import weighted
from marble.tasks.base import Answered, Calibration, Decision, Readout, Score, Task, no_such_target
from marble.tasks.calling import Calling, DecisionRule, pooled_threshold, threshold_per_case
from marble.tasks.cross_entropy import LOSSES, ClassCriterion, ClassLoss, ClassWeights
from marble.tasks.metric import Bools, Floats, Ints, Metric, finite_scores, stored_column
from marble.tasks.threshold import SMALLEST
from marble.tasks.weighted import WeightedMetric

#: how far the stored probabilities of a case may be from a sum of 1
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Classification(Task):
    """Tell `classes` apart.

    Args:
        classes: names, at least two; kappa takes them as ordered grades.
        class_weights: weight of a slide's loss by its class: "none" (or None), "balanced" (inverse frequency among the
            training slides, so that their mean weight is 1), or one number per class.
        loss: "cross-entropy"; "multi-label-bce": one yes-or-no question per class (DSMIL);
            "cross-entropy-of-probabilities": cross-entropy that takes the softmax for logits, as S4-MIL was trained;
            "bernoulli": of two classes one output, the log-likelihood of its clamped sigmoid (ABMIL, CS-MIL); of more,
            one such question per class.
        side_label_smoothing: of the cross-entropy of a model's side predictions (HAG-MIL's coarse levels).
        decision: "argmax": the most probable class is called, the first of equals; "threshold", for two classes: the
            positive one is called from a threshold on, which is chosen on validation.
        positive: of two classes the one that is looked for; the second if not named.
    """

    classes: tuple[str, ...]
    class_weights: ClassWeights | None = "none"
    loss: ClassLoss = "cross-entropy"
    side_label_smoothing: float = 0.0
    decision: DecisionRule = "argmax"
    positive: str | None = None

    name: ClassVar[str] = "classification"
    target_kind: ClassVar[TargetKind] = "classification"
    select_by: ClassVar[str] = "auc"
    tested: ClassVar[tuple[str, ...]] = ("auc", "accuracy")
    target_columns: ClassVar[tuple[str, ...]] = ("label",)
    calibrated_on: ClassVar[tuple[str, ...]] = ("val",)
    chance: ClassVar[Mapping[str, float]] = {"auc": 0.5}
    inflated: ClassVar[frozenset[str]] = frozenset({"ece"})

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise SpecError(f"classes must be two or more different names, got {list(self.classes)}")
        if self.loss not in LOSSES:
            raise SpecError(unknown_choice("loss", self.loss, list(LOSSES)))
        if not 0 <= self.side_label_smoothing < 1:
            raise SpecError(f"side_label_smoothing must be at least 0 and below 1, got {self.side_label_smoothing}")
        if self.side_label_smoothing and self.loss != "cross-entropy":
            raise SpecError(f'side_label_smoothing needs loss = "cross-entropy", got "{self.loss}"')
        _ = self.calling  # which checks how a class is called
        weights = self.class_weights
        if isinstance(weights, str) and weights not in ("none", "balanced"):
            raise SpecError(unknown_choice("class_weights", weights, ["none", "balanced", "one number per class"]))
        if isinstance(weights, tuple):
            usable = len(weights) == len(self.classes) and all(np.isfinite(w) and w > 0 for w in weights)
            if not usable:
                raise SpecError(f"class_weights needs {len(self.classes)} positive numbers, got {list(weights)}")

    @classmethod
    def of(cls, choices: Mapping[str, Any]) -> Self:
        return cls(
            tuple(choices["classes"]),
            class_weights=choices["class_weights"],
            loss=choices["class_loss"],
            side_label_smoothing=choices["side_label_smoothing"],
            decision=choices["decision"],
            positive=choices["positive"],
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.classes

    @property
    def calling(self) -> Calling:
        """How a class is called."""
        return Calling(self.classes, self.decision, self.positive)

    @property
    def positive_index(self) -> int:
        """Of two classes, the place of the positive one."""
        return self.calling.positive_index

    @property
    def looked_for(self) -> str | None:
        return self.calling.positive_class if self.decision == "threshold" else None

    @property
    def metric_names(self) -> dict[str, str]:
        names = {
            "auc": "AUC",
            "accuracy": "Accuracy",
            "balanced_accuracy": "Balanced acc.",
            "f1": "F1",
            "kappa": "Kappa" if len(self.classes) == 2 else "Kappa (quadratic)",
            "ece": "ECE (lower is better)",
        }
        if self.decision == "threshold":
            names |= {"sensitivity": "Sensitivity", "specificity": "Specificity"}
        return names

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

    def readout(self, logits: Tensor, calibration: Calibration | None = None) -> Readout:
        """One probability per class; they sum to 1.

        The softmax of the logits, except where they were trained as separate yes-or-no questions: then the sigmoids
        divided by their sum, since for those the softmax of perfect answers would be overconfident. Of a single
        question, the sigmoid is the probability of the second class. A calibration divides by its temperature first.
        """
        values = logits.detach().double().cpu()
        finite_scores(values.numpy(), "logits")
        if values.shape != (self.outputs,):
            raise InputError(f"logits must be ({self.outputs},), got {tuple(values.shape)}")
        answers = self._answers(values[None])[0] / (calibration or {}).get("temperature", 1.0)
        return dict(zip(self.columns, torch.softmax(answers, dim=0).tolist(), strict=True))

    def _answers(self, logits: Tensor) -> Tensor:
        """Logits (n, outputs) -> scores (n, K) whose softmax is the probability."""
        if self.outputs == 1:  # softmax(0, x) = (1 - sigmoid x, sigmoid x)
            return torch.cat([torch.zeros_like(logits), logits], dim=1)
        if self.loss in ("multi-label-bce", "bernoulli"):
            # softmax(log sigmoid) = sigmoid / sum of sigmoids, also where every sigmoid underflows
            return functional.logsigmoid(logits)
        return logits

    def calibrate(self, parts: Mapping[str, Answered]) -> dict[str, Any]:
        """The temperature and, if one is wanted, the threshold: from validation cases."""
        answered = parts["val"]
        truth = self._truth(answered.targets)
        answers = self._answers(torch.from_numpy(answered.logits)).numpy()
        return self.calling.calibrate(answers, truth, answered.patients)

    def called(self, readouts: Mapping[str, ArrayLike], calibration: Calibration) -> Ints:
        return self.calling.called(self._probabilities(readouts), calibration)

    def decide(self, readout: Mapping[str, float], calibration: Calibration) -> Decision:
        (index,) = self.called({name: [readout[name]] for name in self.columns}, calibration)
        return self.calling.decision(int(index), calibration)

    def pool(self, readouts: Sequence[Mapping[str, float]]) -> Readout:
        """The softmax of the mean calibrated logits: of log-probabilities, which differ from logits by a constant."""
        p = np.array([[readout[name] for name in self.columns] for readout in readouts])  # (runs, K)
        mean = np.log(np.maximum(p, SMALLEST)).mean(axis=0)
        return dict(zip(self.columns, torch.softmax(torch.from_numpy(mean), dim=0).tolist(), strict=True))

    def pool_calibrations(self, calibrations: Sequence[Calibration]) -> Calibration:
        return pooled_threshold(calibrations)

    def join_calibrations(self, calibrations: Sequence[Calibration]) -> Calibration:
        return threshold_per_case(calibrations)

    def headline(self, readout: Mapping[str, float], decision: Decision) -> tuple[str, float]:
        assert decision.label is not None
        return decision.label, readout[f"p_{decision.label}"]

    def sentence(self, readout: Mapping[str, float], decision: Decision) -> str:
        rule = "" if decision.threshold is None else f" ({decision.rule})"
        return f"predicted {decision.label}, p = {readout[f'p_{decision.label}']:.4f}{rule}"

    def score(self, target: str | None = None, calibration: Calibration | None = None) -> Score:
        del calibration  # a map is about the logits themselves
        if target is None:
            raise InputError("name the class to explain", hint=f"One of {', '.join(self.classes)}")
        if target not in self.classes:
            raise no_such_target(target, self.classes)
        if self.outputs == 1:  # one yes-or-no question: the first class's logit is minus the second's
            sign = 1 if target == self.classes[1] else -1
            return Score(f"logit of {target}", lambda logits: sign * logits[0])
        place = self.classes.index(target)
        return Score(f"logit of {target}", lambda logits: logits[place])

    def metrics(
        self,
        targets: Sequence[Target],
        readouts: Mapping[str, ArrayLike],
        calibration: Calibration | None = None,
    ) -> dict[str, Metric]:
        """AUC (two classes: of the positive; more: macro one-vs-rest), accuracy, balanced accuracy, macro F1, kappa.

        Also the expected calibration error and, where a threshold decides, sensitivity and specificity.
        """
        truth, p = self._truth(targets), self._probabilities(readouts)
        if len(p) != len(truth):
            raise InputError(f"{len(truth)} targets but {len(p)} predictions")
        called = self.called(readouts, calibration or {})
        found: dict[str, Metric] = {
            "auc": scores.auc(truth, p, self.classes, self.positive_index),
            "accuracy": scores.accuracy(truth, called),
            "balanced_accuracy": scores.balanced_accuracy(truth, called, self.classes),
            "f1": scores.macro_f1(truth, called, self.classes),
            "kappa": scores.quadratic_kappa(truth, called, self.classes),
            "ece": scores.expected_calibration_error(truth, p),
        }
        if self.decision == "threshold":
            found["sensitivity"] = scores.sensitivity(truth, called, self.positive_index)
            found["specificity"] = scores.specificity(truth, called, self.positive_index)
        return found

    def weighted_metrics(
        self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike], calibration: Calibration
    ) -> dict[str, WeightedMetric]:
        truth, p = self._truth(targets), self._probabilities(readouts)
        called, k = self.called(readouts, calibration), len(self.classes)
        positive, yes = truth == self.positive_index, called == self.positive_index
        area = partial(weighted.auc, positive, p[:, self.positive_index]) if k == 2 else None
        found: dict[str, WeightedMetric] = {
            "auc": area or partial(weighted.macro_auc, truth, p),
            "accuracy": partial(weighted.accuracy, truth, called),
            "balanced_accuracy": partial(weighted.balanced_accuracy, truth, called, k),
            "f1": partial(weighted.macro_f1, truth, called, k),
            "kappa": partial(weighted.quadratic_kappa, truth, called, k),
            "ece": partial(weighted.calibration_error, *scores.confidence_excess(truth, p), scores.CALIBRATION_BINS),
        }
        if self.decision == "threshold":
            found["sensitivity"] = partial(weighted.recall, positive, yes)
            found["specificity"] = partial(weighted.recall, ~positive, ~yes)
        return found

    def binary(self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike]) -> tuple[Bools, Floats] | None:
        if len(self.classes) != 2:
            return None
        positive: Bools = self._truth(targets) == self.positive_index
        return positive, stored_column(readouts, self.columns[self.positive_index])

    def caption(self, calibrations: Sequence[Calibration]) -> str:
        return self.calling.caption(calibrations)

    def is_wrong(self, target: Target, decision: Decision) -> bool:
        return decision.label != target

    def target_cells(self, target: Target) -> tuple[str]:
        return (self.classes[self.index(target)],)

    def read_target(self, row: Mapping[str, str]) -> Target:
        return self.classes[self.index(row["label"])]

    def target_text(self, target: Target, unit: str = "") -> str:
        return str(target)

    def check_readout(self, readout: Mapping[str, float]) -> None:
        for name in self.columns:
            if not 0 <= readout[name] <= 1:
                raise InputError(f"column '{name}' holds {readout[name]!r}, which is not a probability")
        total = sum(readout[name] for name in self.columns)
        if abs(total - 1) > SUM_TOLERANCE:
            raise InputError(f"the probabilities of {', '.join(self.columns)} sum to {total:.6g}, not to 1")

    def class_of(self, target: Target) -> int:
        return self.index(target)

    def _truth(self, targets: Sequence[Target]) -> Ints:
        return np.array([self.index(target) for target in targets], dtype=np.int64)

    def _probabilities(self, readouts: Mapping[str, ArrayLike]) -> Floats:
        """(n, K)"""
        return np.stack([stored_column(readouts, name) for name in self.columns], axis=1)

    def index(self, target: Target, where: str | None = None) -> int:
        """The position of a label in `classes`."""
        if not isinstance(target, str):
            raise InputError(f"a classification target is a class name, got {target!r}", where=where)
        if target not in self.classes:
            raise InputError(unknown_choice("class", target, list(self.classes)), where=where)
        return self.classes.index(target)
