"""The contract of a task: sole owner of its loss, its metrics and what to select on.

Task        what is asked: number of outputs, what is stored per case, metrics from what is stored
Criterion   a task's loss bound to one training set, one slide at a time; may hold state between steps
Metric      a number, or `Undefined` with the reason; never NaN
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marble.errors import InputError, NonFiniteError, RunError
from marble.targets import SurvivalTime, Target

if TYPE_CHECKING:  # metrics are computed without torch
    from torch import Tensor

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Undefined:
    """A metric that these cases cannot have, and why."""

    reason: str

    def __str__(self) -> str:
        return f"undefined ({self.reason})"


Metric: TypeAlias = float | Undefined
Readout: TypeAlias = dict[str, float]


class Criterion(ABC):
    """The loss of one training set, one slide at a time.

    `stream` tells the predictions of one slide apart (a model's main output and its side outputs).
    """

    #: whether every training slide must be shown once, through :meth:`prime`, before the first step
    needs_priming: ClassVar[bool] = False

    @abstractmethod
    def loss(self, slide_id: str, logits: Tensor, stream: str = "main") -> Tensor:
        """A scalar whose backward gives this step's gradient."""

    @abstractmethod
    def validation_loss(self, targets: Sequence[Target], logits: Tensor) -> Metric:
        """Mean loss of held-out cases, from their logits (n, outputs) at once; changes no state."""

    def prime(self, slide_id: str, logits: Tensor, stream: str = "main") -> None:
        """Take note of a slide's prediction without a gradient; most losses have nothing to note."""
        del slide_id, logits, stream

    def state(self) -> dict[str, Tensor]:
        """What must be saved so that a resumed run goes on bitwise as if never stopped."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise RunError(f"{type(self).__name__} keeps no state, but the checkpoint holds {sorted(state)}")


class Task(ABC):
    """What is asked of a model."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of logits a model must have."""

    @property
    @abstractmethod
    def select_by(self) -> str:
        """Name of the validation metric that chooses the checkpoint; larger is better."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers stored per case."""

    @abstractmethod
    def criterion(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> Criterion:
        """The loss over the training slides: `targets` and `patients` are {slide_id: ...} of these alone."""

    @abstractmethod
    def readout(self, logits: Tensor) -> Readout:
        """What is stored of one prediction's logits (outputs,): one number per column."""

    @abstractmethod
    def metrics(self, targets: Sequence[Target], readouts: Mapping[str, ArrayLike]) -> dict[str, Metric]:
        """Every metric of n cases, from what is stored of them: {column: (n,)}."""


def finite_scores(scores: ArrayLike, name: str) -> Floats:
    """`scores` as float64; NaN or infinity is refused, because a rank metric would turn it into a plausible number."""
    values = np.asarray(scores, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(values.reshape(-1)))
    if bad.size:
        raise NonFiniteError(
            f"{bad.size} of {values.size} scores are not finite, first at index {bad[0]}",
            where=name,
            hint="Find the case behind that row: its features or the weights hold a NaN",
        )
    return values


def stored_column(readouts: Mapping[str, ArrayLike], name: str) -> Floats:
    """One stored column (n,), finite."""
    if name not in readouts:
        raise InputError(f"the predictions have no column '{name}'; they have {', '.join(sorted(readouts))}")
    return finite_scores(readouts[name], name)


def outcome_arrays(targets: Sequence[Target]) -> tuple[Floats, Bools]:
    """Times (n,) and events (n,) of a survival task's targets."""
    outcomes = [target for target in targets if isinstance(target, SurvivalTime)]
    if len(outcomes) != len(targets):
        wrong = next(target for target in targets if not isinstance(target, SurvivalTime))
        raise InputError(f"a survival target is a time and an event, got {wrong!r}")
    time = np.array([outcome.time for outcome in outcomes], dtype=np.float64)
    event = np.array([outcome.event for outcome in outcomes], dtype=np.bool_)
    return time, event


def follow_up(time: ArrayLike, event: ArrayLike) -> tuple[Floats, Bools]:
    """Check times (n,) and events (n,) that belong together."""
    times, events = finite_scores(time, "time"), np.asarray(event)
    if times.ndim != 1 or events.shape != times.shape:
        raise InputError(f"times and events must be two lists of one length, got {times.shape} and {events.shape}")
    if times.size and times.min() < 0:
        raise InputError(f"follow-up times must not be negative, got {times.min()}")
    if not np.isin(events, (0, 1)).all():
        raise InputError("events must be True or False (1 = the event was seen, 0 = censored)")
    return times, events.astype(np.bool_)
