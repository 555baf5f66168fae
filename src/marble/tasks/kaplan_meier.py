"""The survival curve of a group without a model, and whether groups differ (log-rank)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, ndtri  # far quicker to import than scipy.stats

from marble.errors import InputError
from marble.tasks.metric import Bools, Floats, Ints, Undefined, finite_scores, follow_up


@dataclass(frozen=True)
class KaplanMeier:
    """P(no event up to t), a step at each of `times`, with Greenwood's variance of its logarithm."""

    times: Floats  # (m,) distinct follow-up times, rising
    at_risk: Ints  # (m,) followed until just before each time
    events: Ints  # (m,)
    survival: Floats  # (m,) just after each time
    log_variance: Floats  # (m,) of log survival; infinite where the curve is 0

    @classmethod
    def fit(cls, time: ArrayLike, event: ArrayLike) -> Self:
        """From times (n,) and events (n,)."""
        t, e = follow_up(time, event)
        times, at_risk, events, _ = _life_table(t, e)
        return cls._from_counts(times, at_risk, events)

    @classmethod
    def fit_censoring(cls, time: ArrayLike, event: ArrayLike) -> Self:
        """The curve of *staying under observation*: censoring is the event.

        At a tie events come before censoring: who has an event is no longer at risk of being censored at that time.
        """
        t, e = follow_up(time, event)
        times, at_risk, events, censored = _life_table(t, e)
        return cls._from_counts(times, at_risk - events, censored)

    @classmethod
    def _from_counts(cls, times: Floats, at_risk: Ints, events: Ints) -> Self:
        survival: Floats = np.multiply.accumulate(1.0 - events / np.maximum(at_risk, 1))
        with np.errstate(divide="ignore"):
            greenwood = np.cumsum(events / (np.maximum(at_risk, 1) * np.where(events, at_risk - events, 1)))
        return cls(times, at_risk, events, survival, greenwood)

    def at(self, times: ArrayLike) -> Floats:
        """The curve at any times; after the last follow-up it stays where it was."""
        step = np.searchsorted(self.times, finite_scores(times, "times"), side="right")
        curve: Floats = np.append(1.0, self.survival)[step]
        return curve

    def known_at(self, times: ArrayLike) -> Bools:
        """Where the curve rests on data: up to the last follow-up, or anywhere once it has reached 0."""
        last, end = (self.times[-1], self.survival[-1]) if len(self.times) else (-np.inf, 1.0)
        known: Bools = (np.asarray(times) <= last) | (end == 0)
        return known

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper bounds (m,) on the log(-log) scale, which keeps them within 0 and 1.

        Where the curve is still 1 both bounds are 1; where it is 0 they are NaN, as nothing is left to estimate from.
        """
        s = self.survival
        inside = (s > 0) & (s < 1)
        log_s = np.log(np.where(inside, s, 0.5))
        half = ndtri(0.5 + level / 2) * np.sqrt(np.where(inside, self.log_variance, 0.0)) / log_s  # negative
        bounds = [
            np.where(inside, np.exp(log_s * np.exp(sign * half)), np.where(s == 1, 1.0, np.nan)) for sign in (-1, 1)
        ]
        return bounds[0], bounds[1]

    def median(self) -> float | Undefined:
        """The first time at which at most half are without the event."""
        reached = np.flatnonzero(self.survival <= 0.5 + 1e-12)  # a product of fractions may miss one half by rounding
        if not reached.size:
            return Undefined("the curve stays above one half")
        return float(self.times[reached[0]])


@dataclass(frozen=True)
class LogRank:
    """Result of a log-rank test."""

    statistic: float
    degrees: int
    p_value: float


def logrank(time: ArrayLike, event: ArrayLike, group: ArrayLike) -> LogRank | Undefined:
    """Do groups (n,) differ in survival? Chi-square of observed against expected events.

    A group with nobody at risk at any event time carries no information and no degree of freedom.
    """
    t, e = follow_up(time, event)
    names, member = np.unique(np.asarray(group), return_inverse=True)
    if member.shape != t.shape:
        raise InputError(f"{len(t)} outcomes but groups of shape {member.shape}")
    if len(names) < 2 or not e.any():
        return Undefined("one group only" if e.any() else "no event")
    times = np.unique(t[e])  # (m,) distinct event times
    # (groups, m): followed until just before each event time, and events at it
    at_risk = np.stack([np.sum(t[member == g, None] >= times, axis=0) for g in range(len(names))])
    events = np.stack(
        [np.sum((t[member == g, None] == times) & e[member == g, None], axis=0) for g in range(len(names))]
    )
    n, d = at_risk.sum(axis=0), events.sum(axis=0)  # (m,)
    informative = np.flatnonzero(at_risk.any(axis=1))
    if len(informative) < 2:
        return Undefined("only one group has patients at risk at an event")
    share = at_risk[informative] / n  # (g, m)
    excess = (events[informative] - share * d).sum(axis=1)  # (g,)
    spread = d * (n - d) / np.maximum(n - 1, 1)  # (m,) hypergeometric, with ties
    variance = np.diag((share * spread).sum(axis=1)) - (share * spread) @ share.T  # (g, g), of rank g - 1
    if np.linalg.matrix_rank(variance) < len(informative) - 1:
        return Undefined("no event time tells all groups apart")
    statistic = float(excess[:-1] @ np.linalg.solve(variance[:-1, :-1], excess[:-1]))
    degrees = len(informative) - 1
    return LogRank(statistic, degrees, float(chdtrc(degrees, statistic)))


def _life_table(time: Floats, event: Bools) -> tuple[Floats, Ints, Ints, Ints]:
    """Distinct times, and at each: followed until just before it, events, censored."""
    times, place, leaving = np.unique(time, return_inverse=True, return_counts=True)
    events = np.bincount(place, weights=event, minlength=len(times)).astype(np.int64)
    at_risk = len(time) - np.append(0, np.cumsum(leaving))[:-1]
    return times, at_risk.astype(np.int64), events, (leaving - events).astype(np.int64)
