"""What every metric is made of: checked arrays of one number per case, and its value: a number, or why there is none.

NaN is neither taken nor given: a rank metric would turn it into a plausible number, and a table into an empty cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marble.errors import InputError, NonFiniteError
from marble.targets import SurvivalTime, Target

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
