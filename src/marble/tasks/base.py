"""The contract of a task: sole owner of its targets, loss, readout, calibration, decision, metrics and all their names.

Task        what is asked: number of outputs, what is stored per case, metrics from what is stored
Decision    what is said of a case: one rule, whoever shows it
Score       the one number of a prediction that maps explain

Its loss is a `criterion`, its metrics are numbers as `metric` has them.

No other room asks for a task's name: what differs between tasks is a method here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from marble.errors import InputError
from marble.specs import unknown_choice
from marble.targets import Target, TargetKind
from marble.tasks.criterion import Criterion
from marble.tasks.metric import Bools, Floats, Ints, Metric
from marble.tasks.weighted import WeightedMetric

if TYPE_CHECKING:  # metrics are computed without torch
    from torch import Tensor

Readout: TypeAlias = dict[str, float]
#: what was learned from training and validation cases to turn logits into readouts and decisions; plain JSON
Calibration: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Decision:
    """What is said of a case.

    Args:
        label: the class called; None where a task calls none.
        rule: how it was called, in words; empty where nothing is to be said about it.
        threshold: of the positive class's probability, where one decides.
    """

    label: str | None = None
    rule: str = ""
    threshold: float | None = None


@dataclass(frozen=True, eq=False)
class Answered:
    """Cases of one part with their targets, and a model's logits (n, outputs) for them.

    Where slides are scored several cases may be of one patient; without `patients` each is of its own.
    """

    targets: Sequence[Target]
    logits: Floats
    patients: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class Scored:
    """Cases of one part with their targets, and what is stored of a model's predictions: {column: (n,)}.

    Where slides are scored several cases may be of one patient; without `patients` each is of its own.
    """

    targets: Sequence[Target]
    readouts: Mapping[str, ArrayLike]
    patients: Sequence[str] | None = None


@dataclass(frozen=True)
class Score:
    """The one number a map is about: differentiable, made from logits (outputs,), and its name."""

    name: str
    of: Callable[[Tensor], Tensor]
    in_unit: bool = False  # whether it is counted in the unit of the target


class Task(ABC):
    """What is asked of a model."""

    name: ClassVar[str]
    #: the kind of targets it is asked of, as a cohort has them
    target_kind: ClassVar[TargetKind]
    #: the validation metric that chooses the checkpoint; larger is better
    select_by: ClassVar[str]
    #: the metrics of a table that get a paired test
    tested: ClassVar[tuple[str, ...]]
    #: names of the cells that hold a case's target in predictions.csv
    target_columns: ClassVar[tuple[str, ...]]
    #: the parts whose cases :meth:`calibrate` looks at; never the test part
    calibrated_on: ClassVar[tuple[str, ...]] = ()
    #: what a reader calls a case's target
    truth_name: ClassVar[str] = "label"
    #: what a model that knows nothing scores, for the metrics where that does not depend on the cases
    chance: ClassVar[Mapping[str, float]] = {}
    #: metrics from 0 up that resampling makes larger: a sum of absolute deviations grows with every chance one
    inflated: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    @abstractmethod
    def of(cls, choices: Mapping[str, Any]) -> Self:
        """The task with those of an experiment's choices that concern it."""

    @classmethod
    def learned_from(cls, targets: Sequence[Target]) -> dict[str, Any]:
        """Choices that only the training slides' targets can make, such as their mean and SD."""
        del targets
        return {}

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of logits a model must have."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers stored per case."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """What is told apart; empty for a task without classes."""
        return ()

    @property
    def looked_for(self) -> str | None:
        """The class that a threshold on validation decides about; None where none does."""
        return None

    @property
    @abstractmethod
    def metric_names(self) -> dict[str, str]:
        """{metric: what tables and figures call it}, in the order of a table."""

    # ---- learning ----------------------------------------------------------------------------------------------

    @abstractmethod
    def criterion(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> Criterion:
        """The loss over the training slides: `targets` and `patients` are {slide_id: ...} of these alone."""

    def class_of(self, target: Target) -> int | None:
        """The class a case is drawn and clustered by in training; None for a task without classes."""
        del target
        return None

    # ---- from logits to what is said ---------------------------------------------------------------------------

    @abstractmethod
    def readout(self, logits: Tensor, calibration: Calibration | None = None) -> Readout:
        """What is stored of one prediction's logits (outputs,): one number per column; uncalibrated without one."""

    def calibrate(self, parts: Mapping[str, Answered]) -> dict[str, Any]:
        """What turns logits into readouts and decisions, from the parts named by `calibrated_on`."""
        del parts
        return {}

    def decide(self, readout: Mapping[str, float], calibration: Calibration) -> Decision:
        """What is said of a case; the only rule there is, for reports, predictions, heatmaps and viewer alike."""
        del readout, calibration
        return Decision()

    def comparable(self, readout: Mapping[str, float], calibration: Calibration) -> Readout:
        """The readout as it can be set beside those of other runs: as it is, if it means the same in all of them."""
        del calibration
        return dict(readout)

    def pool(self, readouts: Sequence[Mapping[str, float]]) -> Readout:
        """One readout of several runs' for the same case: the mean of what the logits mean."""
        return {name: float(np.mean([readout[name] for readout in readouts])) for name in self.columns}

    def pool_calibrations(self, calibrations: Sequence[Calibration]) -> Calibration:
        """What decides on pooled readouts."""
        del calibrations
        return {}

    def join_calibrations(self, calibrations: Sequence[Calibration]) -> Calibration:
        """One calibration for the readouts of n cases at once, each of which has its own."""
        del calibrations
        return {}

    @abstractmethod
    def headline(self, readout: Mapping[str, float], decision: Decision) -> tuple[str, float]:
        """A case's prediction as one word and one number."""

    @abstractmethod
    def sentence(self, readout: Mapping[str, float], decision: Decision) -> str:
        """A case's prediction as titles and panels say it."""

    def facts(self, readout: Mapping[str, float], target: Target | None, unit: str = "") -> tuple[tuple[str, str], ...]:
        """(name, text) of what a panel lists of a case; `target` is None where it is not known. Classes have bars."""
        del readout, target, unit
        return ()

    def curve(self, readout: Mapping[str, float], calibration: Calibration) -> dict[float, float]:
        """{time: survival} where a task has such a thing."""
        del readout, calibration
        return {}

    @abstractmethod
    def score(self, target: str | None = None, calibration: Calibration | None = None) -> Score:
        """The number that maps explain: of the class `target`, or the only one there is."""

    # ---- judging -----------------------------------------------------------------------------------------------

    @abstractmethod
    def metrics(
        self,
        targets: Sequence[Target],
        readouts: Mapping[str, ArrayLike],
        calibration: Calibration | None = None,
    ) -> dict[str, Metric]:
        """Every metric of n cases, from what is stored of them: {column: (n,)}."""

    def report_metrics(self, test: Scored, train: Scored | None, calibration: Calibration) -> dict[str, Metric]:
        """The metrics of a table: of the test cases; `train` is there where the run stored its training cases."""
        del train
        return self.metrics(test.targets, test.readouts, calibration)

    @abstractmethod
    def weighted_metrics(
        self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike], calibration: Calibration
    ) -> dict[str, WeightedMetric]:
        """Those metrics that have a fast form over resampled cases, as functions of weights (B, n)."""

    def binary(self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike]) -> tuple[Bools, Floats] | None:
        """Which cases are positive, and the score for it; None unless the question is a yes or no."""
        del targets, readouts
        return None

    def high_risk(self, readouts: Mapping[str, ArrayLike], calibration: Calibration) -> Bools | None:
        """Which cases are in the group of higher risk; None for a task without risks."""
        del readouts, calibration
        return None

    def numbers(self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike]) -> tuple[Floats, Floats] | None:
        """True and predicted numbers (n,) of a task that predicts one; None for others."""
        del targets, readouts
        return None

    def called(self, readouts: Mapping[str, ArrayLike], calibration: Calibration) -> Ints | None:
        """The class called for each of n cases as an index into `class_names`; None for a task without classes."""
        del readouts, calibration
        return None

    def is_wrong(self, target: Target, decision: Decision) -> bool:
        """Whether what was said of a case is a plain error."""
        del target, decision
        return False

    def caption(self, calibrations: Sequence[Calibration]) -> str:
        """What a table must say about how its runs turned scores into probabilities and decisions; may be empty."""
        del calibrations
        return ""

    # ---- files -------------------------------------------------------------------------------------------------

    @abstractmethod
    def target_cells(self, target: Target) -> tuple[str | float | int, ...]:
        """A target as predictions.csv holds it: one cell per name of `target_columns`."""

    @abstractmethod
    def read_target(self, row: Mapping[str, str]) -> Target:
        """The target in a row of predictions.csv."""

    @abstractmethod
    def target_text(self, target: Target, unit: str = "") -> str:
        """A target as a reader wants it; `unit` is of a number or a time."""

    def read_readout(self, row: Mapping[str, str]) -> Readout:
        """The readout in a row of predictions.csv; what cannot be one is refused."""
        found = {}
        for name in self.columns:
            try:
                found[name] = float(row[name])
            except (KeyError, TypeError, ValueError):
                raise InputError(f"column '{name}' holds {row.get(name)!r}, which is not a number") from None
            if not np.isfinite(found[name]):
                raise InputError(f"column '{name}' holds {row[name]}, which is not finite")
        self.check_readout(found)
        return found

    def check_readout(self, readout: Mapping[str, float]) -> None:
        """Refuse numbers that no prediction of this task can be."""
        del readout


def in_unit(text: str, unit: str) -> str:
    """A number's text with its unit, if it has one."""
    return f"{text} {unit}" if unit else text


def no_such_target(target: str, valid: Sequence[str]) -> InputError:
    """What to say to somebody who wants to see a class explained that there is not."""
    return InputError(unknown_choice("class", target, list(valid)), where="--target")
