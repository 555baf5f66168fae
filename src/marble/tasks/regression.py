"""Regression: one number per case.

z = (target - mean) / sd      mean and sd of the training slides' targets
a model predicts z; what is stored and told is mean + sd * z, in the unit of the table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from marble.errors import InputError, SpecError
from marble.specs import unknown_choice
from marble.targets import Target, TargetKind
from marble.tasks import regression_metrics as scores
from marble.tasks.base import Calibration, Decision, Readout, Score, Task, in_unit
from marble.tasks.criterion import Criterion, JointLoss
from marble.tasks.metric import Floats, Metric, Undefined, finite_scores, stored_column
from marble.tasks.weighted import WeightedMetric

VALUE = "value"


@dataclass(frozen=True)
class Regression(Task):
    """Predict a number.

    Args:
        loss: "squared", or "huber": squared up to one SD of the training targets, straight beyond.
        mean, sd: of the training slides' targets.
    """

    loss: Literal["squared", "huber"] = "squared"
    mean: float = 0.0
    sd: float = 1.0

    name: ClassVar[str] = "regression"
    target_kind: ClassVar[TargetKind] = "regression"
    select_by: ClassVar[str] = "r2"
    tested: ClassVar[tuple[str, ...]] = ("r2", "mae")
    target_columns: ClassVar[tuple[str, ...]] = ("target",)
    truth_name: ClassVar[str] = "true value"
    chance: ClassVar[Mapping[str, float]] = {"r2": 0.0, "pearson": 0.0, "spearman": 0.0}

    def __post_init__(self) -> None:
        if self.loss not in ("squared", "huber"):
            raise SpecError(unknown_choice("loss", self.loss, ["squared", "huber"]))
        if not (np.isfinite(self.mean) and np.isfinite(self.sd) and self.sd > 0):
            raise SpecError(f"mean and sd of the training targets must be finite, sd above 0: {self.mean}, {self.sd}")

    @classmethod
    def of(cls, choices: Mapping[str, Any]) -> Self:
        return cls(choices["regression_loss"], choices["target_mean"], choices["target_sd"])

    @classmethod
    def learned_from(cls, targets: Sequence[Target]) -> dict[str, Any]:
        values = np.array([number(target) for target in targets], dtype=np.float64)
        if np.ptp(values) == 0:
            raise InputError(
                f"all {len(values)} training slides have the target {values[0]:g}: there is nothing to learn",
                hint="Check the column that `target` names",
            )
        return {"target_mean": float(values.mean()), "target_sd": float(values.std())}

    @property
    def outputs(self) -> int:
        return 1

    @property
    def columns(self) -> tuple[str, ...]:
        return (VALUE,)

    @property
    def metric_names(self) -> dict[str, str]:
        return {"r2": "R2", "mae": "MAE (lower is better)", "pearson": "Pearson r", "spearman": "Spearman rho"}

    def criterion(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> RegressionCriterion:
        return RegressionCriterion(self, {slide: number(target, slide) for slide, target in targets.items()})

    def readout(self, logits: Tensor, calibration: Calibration | None = None) -> Readout:
        values = logits.detach().double().cpu()
        finite_scores(values.numpy(), "logits")
        if values.shape != (1,):
            raise InputError(f"logits must be (1,), got {tuple(values.shape)}")
        return {VALUE: self.mean + self.sd * float(values[0])}

    def headline(self, readout: Mapping[str, float], decision: Decision) -> tuple[str, float]:
        return f"{readout[VALUE]:.4g}", readout[VALUE]

    def sentence(self, readout: Mapping[str, float], decision: Decision) -> str:
        return f"predicted {readout[VALUE]:.4g}"

    def facts(self, readout: Mapping[str, float], target: Target | None, unit: str = "") -> tuple[tuple[str, str], ...]:
        """The predicted value; where the true one is known, also that, and by how much the first is above it."""
        value = readout[VALUE]
        said = ("predicted value", in_unit(f"{value:.4g}", unit))
        if target is None:
            return (said,)
        error = in_unit(f"{value - number(target):+.4g}", unit)
        return said, (self.truth_name, self.target_text(target, unit)), ("error", error)

    def score(self, target: str | None = None, calibration: Calibration | None = None) -> Score:
        del calibration
        if target not in (None, VALUE):
            raise InputError(f"a regression run explains its value, not '{target}'", where="--target")
        return Score("predicted value", lambda logits: self.mean + self.sd * logits[0], in_unit=True)

    def metrics(
        self,
        targets: Sequence[Target],
        readouts: Mapping[str, ArrayLike],
        calibration: Calibration | None = None,
    ) -> dict[str, Metric]:
        """R2 (1 minus the squared errors over those of the cases' own mean), mean absolute error, correlations."""
        truth, predicted = self.numbers(targets, readouts)
        return {
            "r2": scores.r2(truth, predicted),
            "mae": scores.mean_absolute_error(truth, predicted),
            "pearson": scores.pearson(truth, predicted),
            "spearman": scores.spearman(truth, predicted),
        }

    def weighted_metrics(
        self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike], calibration: Calibration
    ) -> dict[str, WeightedMetric]:
        truth, predicted = self.numbers(targets, readouts)
        return {
            "r2": partial(scores.weighted_r2, truth, predicted),
            "mae": partial(scores.weighted_absolute_error, truth, predicted),
            "pearson": partial(scores.weighted_pearson, truth, predicted),
            "spearman": partial(scores.weighted_spearman, truth, predicted),
        }

    def numbers(self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike]) -> tuple[Floats, Floats]:
        truth = np.array([number(target) for target in targets], dtype=np.float64)
        predicted = stored_column(readouts, VALUE)
        if len(truth) != len(predicted):
            raise InputError(f"{len(truth)} targets but {len(predicted)} predictions")
        return truth, predicted

    def target_cells(self, target: Target) -> tuple[float]:
        return (number(target),)

    def read_target(self, row: Mapping[str, str]) -> Target:
        try:
            return number(float(row["target"]))
        except ValueError:
            raise InputError(f"column 'target' holds {row['target']!r}, which is not a number") from None

    def target_text(self, target: Target, unit: str = "") -> str:
        return in_unit(f"{number(target):g}", unit)


class RegressionCriterion(Criterion):
    """The loss of each slide, in units of the training targets' SD."""

    def __init__(self, task: Regression, targets: Mapping[str, float]) -> None:
        self._task = task
        self._targets = dict(targets)

    def loss(self, slide_id: str, logits: Tensor, stream: str = "main") -> Tensor:
        if slide_id not in self._targets:
            raise InputError("not one of the training slides of this criterion", where=slide_id)
        return self._losses(logits[None], [self._targets[slide_id]])[0]

    def joint_loss(self, slide_ids: Sequence[str]) -> JointLoss:
        targets = [self._targets[slide_id] for slide_id in slide_ids]
        return lambda logits: self._losses(logits, targets).sum()

    def held_out_loss(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> JointLoss:
        wanted = [number(target, slide) for slide, target in targets.items()]
        return lambda logits: self._losses(logits, wanted).sum()

    def validation_loss(self, targets: Sequence[Target], logits: Tensor) -> Metric:
        if not targets:
            return Undefined("no cases")
        losses = self._losses(logits.detach().double().cpu(), [number(target) for target in targets])
        return float(finite_scores(losses.numpy(), "validation loss").mean())

    def _losses(self, logits: Tensor, targets: Sequence[float]) -> Tensor:
        """(n, 1), (n,) -> (n,)"""
        if logits.shape != (len(targets), 1):
            raise InputError(f"logits must be ({len(targets)}, 1), got {tuple(logits.shape)}")
        standard = (torch.tensor(targets, dtype=torch.float64) - self._task.mean) / self._task.sd  # (n,)
        wanted = standard.to(logits)
        if self._task.loss == "huber":
            return functional.huber_loss(logits[:, 0], wanted, reduction="none")
        return functional.mse_loss(logits[:, 0], wanted, reduction="none")


def number(target: Target, where: str | None = None) -> float:
    """A regression target as it is, or what is wrong with it."""
    if isinstance(target, bool) or not isinstance(target, float | int) or not np.isfinite(target):
        raise InputError(f"a regression target is a finite number, got {target!r}", where=where)
    return float(target)
