"""The hazard ratio of two groups: a Cox model with one yes-or-no covariate, ties as Efron counts them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marble.tasks.metric import Bools, Floats, Undefined

_Z = 1.959963984540054  # of the 95 % interval
_STEPS, _TOLERANCE = 60, 1e-12


@dataclass(frozen=True)
class HazardRatio:
    """How many times the hazard of one group is that of the other, with its 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"HR {self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"


def hazard_ratio(time: Floats, event: Bools, high: Bools) -> HazardRatio | Undefined:
    """Of the patients with `high` against the others, by Newton's method on the partial likelihood."""
    if high.all() or not high.any():
        return Undefined("one group only")
    if not (event & high).any() or not (event & ~high).any():
        return Undefined("a group without an event")
    beta = 0.0
    for _ in range(_STEPS):
        slope, curvature = _derivatives(beta, time, event, high)
        if curvature <= 0:
            return Undefined("no event tells the groups apart")
        step = slope / curvature
        beta += float(np.clip(step, -1, 1))  # a full step may overshoot where the groups hardly overlap
        if abs(step) < _TOLERANCE:
            spread = _Z / np.sqrt(curvature)
            return HazardRatio(*(float(np.exp(value)) for value in (beta, beta - spread, beta + spread)))
    return Undefined("the groups do not overlap")


def _derivatives(beta: float, time: Floats, event: Bools, high: Bools) -> tuple[float, float]:
    """First derivative of the log partial likelihood, and minus the second."""
    weight = np.exp(beta * high)
    slope = curvature = 0.0
    for at in np.unique(time[event]):
        risk, tied = time >= at, (time == at) & event
        total, ones = weight[risk].sum(), weight[risk & high].sum()
        tied_total, tied_ones = weight[tied].sum(), weight[tied & high].sum()
        slope += (tied & high).sum()
        for share in np.arange(tied.sum()) / tied.sum():  # the tied leave one after another, each a part of them all
            mean = (ones - share * tied_ones) / (total - share * tied_total)
            slope -= mean
            curvature += mean * (1 - mean)
    return float(slope), float(curvature)
