"""Survival curves for a Cox model: Breslow's estimate of the hazard that everybody shares.

H0(t) = sum over event times s <= t of  events at s / sum_{j: t_j >= s} e^{r_j}
S(t | r) = exp( -e^r H0(t) )
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from marble.errors import InputError
from marble.tasks.metric import Floats, finite_scores, follow_up


@dataclass(frozen=True)
class BreslowBaseline:
    """The cumulative baseline hazard, a step at every event time; constant after the last one."""

    times: Floats  # (m,) distinct event times, rising
    log_hazard: Floats  # (m,) log H0 at these times; a logarithm, because e^r may not fit a float

    @classmethod
    def fit(cls, risk: ArrayLike, time: ArrayLike, event: ArrayLike) -> Self:
        """From risks (n,), times (n,), events (n,) of the training patients."""
        r = finite_scores(risk, "risk")
        t, e = follow_up(time, event)
        if r.shape != t.shape:
            raise InputError(f"{len(t)} outcomes but risks of shape {r.shape}")
        if not e.any():
            raise InputError("no event among the training patients: a survival curve cannot be fitted")
        order = np.argsort(-t, kind="stable")
        at_risk = np.logaddexp.accumulate(r[order])  # log sum of e^r, from the longest follow-up down
        times, events = np.unique(t[e], return_counts=True)
        last = np.searchsorted(-t[order], -times, side="right") - 1
        return cls(times, np.logaddexp.accumulate(np.log(events) - at_risk[last]))

    def survival(self, risk: ArrayLike, times: ArrayLike) -> Floats:
        """P(no event up to each of times (m,)) for each of risks (n,): (n, m)."""
        r, t = finite_scores(risk, "risk"), finite_scores(times, "times")
        step = np.searchsorted(self.times, t, side="right")  # number of event times passed
        log_hazard = np.append(-np.inf, self.log_hazard)[step]  # (m,)
        # exp(700) still fits a float; beyond it the curve is 0 anyway
        survival: Floats = np.exp(-np.exp(np.minimum(r[:, None] + log_hazard[None, :], 700.0)))
        return survival
