"""Survival: one risk per case; a larger risk means an earlier event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from marble.errors import InputError, SpecError
from marble.specs import unknown_choice
from marble.targets import SurvivalTime, Target, TargetKind
from marble.tasks import weighted
from marble.tasks.base import Answered, Calibration, Decision, Readout, Score, Scored, Task, in_unit
from marble.tasks.baseline import BreslowBaseline
from marble.tasks.cox import CoxBank, CoxGroup
from marble.tasks.criterion import Criterion
from marble.tasks.discrete import DiscreteCriterion, quantile_edges, survival_at, survival_curve
from marble.tasks.metric import Bools, Floats, Metric, Undefined, finite_scores, outcome_arrays, stored_column
from marble.tasks.survival_metrics import harrell_c, integrated_brier, time_dependent_auc, uno_c
from marble.tasks.weighted import WeightedMetric

#: the survival of one patient is told at these quantiles of the training patients' distinct event times
CURVE_QUANTILES = (0.25, 0.5, 0.75)
#: the mean time-dependent AUC is taken at these quantiles of the event times
AUC_QUANTILES = (0.25, 0.5, 0.75)
#: the Brier score is integrated between these quantiles of the event times, at this many times
BRIER_QUANTILES, BRIER_TIMES = (0.1, 0.9), 50


@dataclass(frozen=True)
class Survival(Task):
    """Order patients by the time of an event.

    Args:
        loss: "cox" (partial likelihood) or "nll" (discrete time).
        risk_set: of Cox: "bank" (the whole training cohort, one slide per step) or "group" (slides of one graph).
        bins: time bins of "nll".
        alpha: of "nll": how much less censored cases count.
    """

    loss: Literal["cox", "nll"] = "cox"
    risk_set: Literal["bank", "group"] = "bank"
    bins: int = 4
    alpha: float = 0.0

    name: ClassVar[str] = "survival"
    target_kind: ClassVar[TargetKind] = "survival"
    select_by: ClassVar[str] = "c_index"
    tested: ClassVar[tuple[str, ...]] = ("c_index",)
    target_columns: ClassVar[tuple[str, ...]] = ("time", "event")
    calibrated_on: ClassVar[tuple[str, ...]] = ("train",)
    truth_name: ClassVar[str] = "outcome"
    chance: ClassVar[Mapping[str, float]] = {"c_index": 0.5}

    def __post_init__(self) -> None:
        if self.loss not in ("cox", "nll"):
            raise SpecError(unknown_choice("loss", self.loss, ["cox", "nll"]))
        if self.risk_set not in ("bank", "group"):
            raise SpecError(unknown_choice("risk_set", self.risk_set, ["bank", "group"]))
        if self.bins < 2:
            raise SpecError(f"bins must be at least 2, got {self.bins}")
        if not 0 <= self.alpha < 1:
            raise SpecError(f"alpha must be at least 0 and below 1, got {self.alpha}")

    @classmethod
    def of(cls, choices: Mapping[str, Any]) -> Self:
        return cls(
            loss=choices["survival_loss"], risk_set=choices["risk_set"], bins=choices["bins"], alpha=choices["alpha"]
        )

    @property
    def metric_names(self) -> dict[str, str]:
        return {
            "c_index": "C-index",
            "c_index_ipcw": "C-index (IPCW)",
            "auc_td": "Time-dep. AUC",
            "ibs": "Integrated Brier (lower is better)",
        }

    @property
    def outputs(self) -> int:
        return 1 if self.loss == "cox" else self.bins

    @property
    def columns(self) -> tuple[str, ...]:
        """`risk`; in discrete time also the survival past each bin."""
        return ("risk",) if self.loss == "cox" else ("risk", *(f"survival_{k + 1}" for k in range(self.bins)))

    def criterion(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> Criterion:
        if self.loss == "nll":
            return DiscreteCriterion(targets, patients, self.bins, self.alpha)
        return CoxBank(targets, patients) if self.risk_set == "bank" else CoxGroup(targets, patients)

    def readout(self, logits: Tensor, calibration: Calibration | None = None) -> Readout:
        """Cox: the logit above that of the run's median training patient, since the loss knows no zero.

        Discrete time: risk = minus the sum of survival over bins, and that survival.
        """
        values = logits.detach().double().cpu()
        finite_scores(values.numpy(), "logits")
        if values.shape != (self.outputs,):
            raise InputError(f"logits must be ({self.outputs},), got {tuple(values.shape)}")
        if self.loss == "cox":
            return {"risk": float(values[0]) - _origin(calibration)}
        survival = survival_curve(values)
        return dict(zip(self.columns, [-float(survival.sum()), *survival.tolist()], strict=True))

    def calibrate(self, parts: Mapping[str, Answered]) -> dict[str, Any]:
        """Where Cox's risks count from, the cut of the risk groups, the baseline hazard: all of training patients."""
        answered = parts["train"]
        risks = np.array([self.readout(torch.from_numpy(row))["risk"] for row in answered.logits])
        median = float(np.sort(risks)[(len(risks) - 1) // 2])  # of an even number, the lower of the two
        origin = median if self.loss == "cox" else 0.0
        time, event = outcome_arrays(answered.targets)
        baseline = BreslowBaseline.fit(risks - origin, time, event)
        return {
            "origin": origin,
            "median_risk": median - origin,
            "baseline_times": baseline.times.tolist(),
            "baseline_log_hazard": baseline.log_hazard.tolist(),
        }

    def comparable(self, readout: Mapping[str, float], calibration: Calibration) -> Readout:
        """A Cox risk counted from the run's training median, also in runs that stored it as the logit is."""
        if self.loss != "cox":
            return dict(readout)
        return {**readout, "risk": readout["risk"] - calibration["median_risk"]}

    def headline(self, readout: Mapping[str, float], decision: Decision) -> tuple[str, float]:
        return f"{readout['risk']:.3f}", readout["risk"]

    def sentence(self, readout: Mapping[str, float], decision: Decision) -> str:
        return f"risk {readout['risk']:.4g}"

    def facts(self, readout: Mapping[str, float], target: Target | None, unit: str = "") -> tuple[tuple[str, str], ...]:
        """The risk; where the follow-up is known, also that."""
        said = ("risk", f"{readout['risk']:.4g}")
        return (said,) if target is None else (said, (self.truth_name, self.target_text(target, unit)))

    def curve(self, readout: Mapping[str, float], calibration: Calibration) -> dict[float, float]:
        """Survival at the quartiles of the times at which training patients had events, each time counted once."""
        if self.loss != "cox":
            return {}
        times, hazard = np.array(calibration["baseline_times"]), np.array(calibration["baseline_log_hazard"])
        at = np.quantile(times, CURVE_QUANTILES)
        survival = BreslowBaseline(times, hazard).survival([readout["risk"]], at)[0]
        return {float(time): float(value) for time, value in zip(at, survival, strict=True)}

    def high_risk(self, readouts: Mapping[str, ArrayLike], calibration: Calibration) -> Bools:
        above: Bools = stored_column(readouts, "risk") > calibration["median_risk"]
        return above

    def score(self, target: str | None = None, calibration: Calibration | None = None) -> Score:
        if target not in (None, "risk"):
            raise InputError(f"a survival run explains its risk, not '{target}'", where="--target")
        if self.loss == "cox":
            origin = _origin(calibration)
            return Score("risk", lambda logits: logits[0] - origin)
        return Score("risk", lambda logits: -survival_curve(logits).sum())

    def target_cells(self, target: Target) -> tuple[float, int]:
        ((time,), (event,)) = outcome_arrays([target])
        return float(time), int(event)

    def read_target(self, row: Mapping[str, str]) -> Target:
        if row["event"] not in ("0", "1"):
            raise InputError(f"column 'event' holds {row['event']!r}, not 0 or 1")
        return SurvivalTime(_number(row["time"]), row["event"] == "1")

    def target_text(self, target: Target, unit: str = "") -> str:
        time, event = self.target_cells(target)
        return f"{in_unit(f'{time:g}', unit)}, {'event' if event else 'censored'}"

    def check_readout(self, readout: Mapping[str, float]) -> None:
        for name in self.columns[1:]:
            if not 0 <= readout[name] <= 1:
                raise InputError(f"column '{name}' holds {readout[name]!r}, which is not a probability")

    def weighted_metrics(
        self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike], calibration: Calibration
    ) -> dict[str, WeightedMetric]:
        time, event = outcome_arrays(targets)
        return {"c_index": partial(weighted.concordance, stored_column(readouts, "risk"), time, event)}

    def report_metrics(self, test: Scored, train: Scored | None, calibration: Calibration) -> dict[str, Metric]:
        found = self.metrics(test.targets, test.readouts)
        found["ibs"] = (
            Undefined("the predictions hold no training patients")
            if train is None
            else self.integrated_brier(test.targets, test.readouts, self._fitted_on(train), train.readouts)
        )
        return found

    def _fitted_on(self, train: Scored) -> Sequence[Target]:
        """Targets of the training cases as a curve takes them: time bins were cut on patients, each counted once."""
        if self.loss == "cox" or train.patients is None:
            return train.targets
        return list(dict(zip(train.patients, train.targets, strict=True)).values())

    def metrics(
        self,
        targets: Sequence[Target],
        readouts: Mapping[str, ArrayLike],
        calibration: Calibration | None = None,
    ) -> dict[str, Metric]:
        """Harrell's C, Uno's C, and the mean time-dependent AUC at the quartiles of the event times.

        The weights against censoring come from these cases themselves.
        """
        time, event = outcome_arrays(targets)
        risk = stored_column(readouts, "risk")
        auc: Metric = Undefined("no event")
        if event.any():
            _, auc = time_dependent_auc(risk, time, event, np.unique(np.quantile(time[event], AUC_QUANTILES)))
        return {"c_index": harrell_c(risk, time, event), "c_index_ipcw": uno_c(risk, time, event), "auc_td": auc}

    def integrated_brier(
        self,
        targets: Sequence[Target],
        readouts: Mapping[str, ArrayLike],
        train_targets: Sequence[Target],
        train_readouts: Mapping[str, ArrayLike],
    ) -> Metric:
        """Integrated Brier score of n cases; lower is better.

        A risk alone is no survival curve, so this asks for the training patients too: they give Cox its baseline
        hazard, and discrete time the edges of its bins. The times and the weights against censoring come from the n
        cases.
        """
        time, event = outcome_arrays(targets)
        if not outcome_arrays(train_targets)[1].any():
            return Undefined("no event among the training patients")
        if len(np.unique(time[event])) < 2:
            return Undefined("fewer than two distinct event times")
        first, last = np.quantile(time[event], BRIER_QUANTILES)
        at = np.linspace(first, last, BRIER_TIMES)  # (m,)
        return integrated_brier(self._curves(readouts, train_targets, train_readouts, at), time, event, at)

    def _curves(
        self,
        readouts: Mapping[str, ArrayLike],
        train_targets: Sequence[Target],
        train_readouts: Mapping[str, ArrayLike],
        at: Floats,
    ) -> Floats:
        """Survival of n cases at times (m,): (n, m)."""
        time, event = outcome_arrays(train_targets)
        if self.loss == "cox":
            baseline = BreslowBaseline.fit(stored_column(train_readouts, "risk"), time, event)
            return baseline.survival(stored_column(readouts, "risk"), at)
        past = np.stack([stored_column(readouts, name) for name in self.columns[1:]], axis=1)  # (n, bins)
        return survival_at(past, quantile_edges(time, event, self.bins), float(time.max()), at)


def _origin(calibration: Calibration | None) -> float:
    """The logit that risks count from; runs of before this was so have none."""
    return float((calibration or {}).get("origin", 0.0))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"column 'time' holds {text!r}, which is not a number") from None
