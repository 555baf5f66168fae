"""What is to be predicted for a patient: a class, a number, or a time under observation with its end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from marble.errors import TableError


@dataclass(frozen=True)
class SurvivalTime:
    """A patient's follow-up: the time of the event (True), or the last time known to be without it (censored)."""

    time: float
    event: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time) and self.time >= 0):
            raise TableError(f"follow-up time {self.time} is not a number >= 0", hint="Give a time since diagnosis")
        if not isinstance(self.event, bool | np.bool_):
            raise TableError(
                f"event must be True or False, got {self.event!r}",
                hint="Tables code it either way round (1 = event, or 1 = censored): decode it where it is read",
            )


#: a class; a time under observation; or, for regression, a finite number
Target: TypeAlias = str | SurvivalTime | float

#: the kinds of targets a cohort can have, each by the name of the plainest task over it
TargetKind: TypeAlias = Literal["classification", "survival", "regression"]
