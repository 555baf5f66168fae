"""Scores of predicted risks and survival curves under censoring.

A larger risk means an earlier event. Equal risks count one half; equal means equal as floats (a tolerance would make
the score depend on the unit of the risk). A pair (i, j) is comparable if i had an event and j was still followed after
it: t_i < t_j, or t_i = t_j with j censored (censoring is taken to come after events of the same time). Two events of
the same time are not comparable.

Weights against censoring are 1 / G(t_i), as Uno and Graf published them: G, the chance of staying under observation, is
a Kaplan-Meier curve of the training patients or, if none is given, of the scored cases themselves. Where G is 0 or
unknown the score is undefined.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from marble.errors import InputError
from marble.tasks.kaplan_meier import KaplanMeier
from marble.tasks.metric import Bools, Floats, Ints, Metric, Undefined, finite_scores, follow_up

NO_PAIR = Undefined("no comparable pair")


def harrell_c(risk: ArrayLike, time: ArrayLike, event: ArrayLike) -> Metric:
    """Share of comparable pairs in which the one with the earlier event has the larger risk."""
    r, t, e = _cases(risk, time, event)
    lower, tied, comparable = concordance_counts(r, t, e)
    pairs = int(comparable.sum())
    if pairs == 0:
        return NO_PAIR
    return int(2 * lower.sum() + tied.sum()) / (2 * pairs)  # whole numbers until the one division


def uno_c(
    risk: ArrayLike,
    time: ArrayLike,
    event: ArrayLike,
    *,
    tau: float | None = None,
    censoring: KaplanMeier | None = None,
) -> Metric:
    """Harrell's C with pairs weighted by 1 / G(t_i)^2, so that it does not depend on who was censored.

    `tau` leaves out events at or after that time, where few are left under observation.
    """
    r, t, e = _cases(risk, time, event)
    lower, tied, comparable = concordance_counts(r, t, e)
    counted = e & (comparable > 0) & (t < (np.inf if tau is None else tau))
    if not counted.any():
        return NO_PAIR
    staying = _staying(t[counted], censoring or KaplanMeier.fit_censoring(t, e))
    if isinstance(staying, Undefined):
        return staying
    weight = staying**-2.0
    return float(weight @ (lower[counted] + 0.5 * tied[counted]) / (weight @ comparable[counted]))


def concordance_counts(risk: Floats, time: Floats, event: Bools) -> tuple[Ints, Ints, Ints]:
    """Of each event's comparable partners: how many have a lower risk, the same, and how many there are; 0 if censored.

    O(n log^2 n): ordered by time, an event's partners are all that stand from some place on. That tail is cut into
    blocks of 1, 2, 4, ... places, and each block is searched in order of risk.
    """
    n = len(time)
    order = np.lexsort((~event, time))  # by time, events before censored ones of the same time
    t, e = time[order], event[order]
    events_before = np.append(0, np.cumsum(e))
    first, after = np.searchsorted(t, t, side="left"), np.searchsorted(t, t, side="right")
    start = (first + events_before[after] - events_before[first])[e]  # place of each event's first partner
    partners = n - start

    rank = np.unique(risk, return_inverse=True)[1][order].astype(np.int64)
    wanted = rank[e]
    size = 1
    blocks = np.full(1 << max(n - 1, 0).bit_length(), n, dtype=np.int64)  # padded with a rank above all others
    blocks[:n] = rank
    lower, tied = np.zeros(len(start), dtype=np.int64), np.zeros(len(start), dtype=np.int64)
    while size < len(blocks):
        blocks = np.sort(blocks.reshape(-1, size), axis=1).reshape(-1)
        keys = blocks + (np.arange(len(blocks)) // size) * (n + 1)  # rising, so that one search serves all blocks
        here = np.flatnonzero(start & size)  # whose tail begins with a block of this size
        block = start[here] // size
        key = wanted[here] + block * (n + 1)
        left = np.searchsorted(keys, key, side="left")
        lower[here] += left - block * size
        tied[here] += np.searchsorted(keys, key, side="right") - left
        start = np.where(start & size, start + size, start)
        size *= 2
    found = np.zeros((3, n), dtype=np.int64)
    found[:, order[e]] = lower, tied, partners
    return found[0], found[1], found[2]


def time_dependent_auc(
    risk: ArrayLike,
    time: ArrayLike,
    event: ArrayLike,
    at: ArrayLike,
    *,
    censoring: KaplanMeier | None = None,
) -> tuple[list[Metric], Metric]:
    """At each time of `at` (m,), the AUC of those with an event by then against those still without it (Uno).

    Also the mean over times, weighted by the share of events that fall up to each (Lambert and Chevret).
    """
    r, t, e = _cases(risk, time, event)
    horizons = _horizons(at)
    model = censoring or KaplanMeier.fit_censoring(t, e)
    values = [_auc_at(r, t, e, float(horizon), model) for horizon in horizons]
    numbers = [value for value in values if not isinstance(value, Undefined)]
    if len(numbers) < len(values):
        return values, next(value for value in values if isinstance(value, Undefined))
    drop = -np.diff(np.append(1.0, KaplanMeier.fit(t, e).at(horizons)))  # share of events in each interval
    return values, float(np.dot(numbers, drop) / drop.sum())


def brier_scores(
    survival: ArrayLike,
    time: ArrayLike,
    event: ArrayLike,
    at: ArrayLike,
    *,
    censoring: KaplanMeier | None = None,
) -> list[Metric]:
    """Mean squared error of predicted survival (n, m) at each time of `at` (m,), weighted against censoring (Graf)."""
    s, horizons = finite_scores(survival, "survival"), _horizons(at)
    t, e = follow_up(time, event)
    if s.shape != (len(t), len(horizons)):
        raise InputError(f"survival must be ({len(t)}, {len(horizons)}), got {s.shape}")
    if len(t) == 0:
        return [Undefined("no cases")] * len(horizons)
    model = censoring or KaplanMeier.fit_censoring(t, e)
    return [_brier_at(s[:, k], t, e, float(horizon), model) for k, horizon in enumerate(horizons)]


def integrated_brier(
    survival: ArrayLike,
    time: ArrayLike,
    event: ArrayLike,
    at: ArrayLike,
    *,
    censoring: KaplanMeier | None = None,
) -> Metric:
    """Mean of :func:`brier_scores` over the span of `at`, by the trapezoid rule; 0 is perfect, 0.25 is a coin."""
    horizons = _horizons(at)
    if len(horizons) < 2:
        raise InputError("an integrated score needs at least two times")
    values = brier_scores(survival, time, event, horizons, censoring=censoring)
    numbers: list[float] = []
    for value in values:
        if isinstance(value, Undefined):
            return value
        numbers.append(value)
    return float(np.trapezoid(numbers, horizons) / (horizons[-1] - horizons[0]))


def _auc_at(risk: Floats, time: Floats, event: Bools, horizon: float, censoring: KaplanMeier) -> Metric:
    case, control = event & (time <= horizon), np.sort(risk[time > horizon])
    if not case.any():
        return Undefined(f"no event by time {horizon:g}")
    if not control.size:
        return Undefined(f"nobody is followed beyond time {horizon:g}")
    staying = _staying(time[case], censoring)
    if isinstance(staying, Undefined):
        return staying
    below = np.searchsorted(control, risk[case], side="left") + np.searchsorted(control, risk[case], side="right")
    weight = 1.0 / staying
    return float(weight @ below / (2 * control.size * weight.sum()))


def _brier_at(survival: Floats, time: Floats, event: Bools, horizon: float, censoring: KaplanMeier) -> Metric:
    case, control = event & (time <= horizon), time > horizon
    if not control.any():
        return Undefined(f"nobody is followed beyond time {horizon:g}")
    squares = 0.0
    # An event is right at survival 0, weighted at its own time; a survivor at 1, weighted at the horizon.
    for who, truth, when in ((case, 0.0, time), (control, 1.0, np.full_like(time, horizon))):
        staying = _staying(when[who], censoring)
        if isinstance(staying, Undefined):
            return staying
        squares += float(np.sum((survival[who] - truth) ** 2 / staying))
    return squares / len(time)


def _staying(times: Floats, censoring: KaplanMeier) -> Floats | Undefined:
    """G at `times`, all positive."""
    if not censoring.known_at(times).all():
        return Undefined("a time is later than the follow-up that the censoring curve was fitted on")
    staying = censoring.at(times)
    if (staying == 0).any():
        return Undefined("nobody stays under observation until the time of an event")
    return staying


def _horizons(at: ArrayLike) -> Floats:
    horizons = np.atleast_1d(finite_scores(at, "times"))
    if horizons.ndim != 1 or not len(horizons) or (np.diff(horizons) <= 0).any():
        raise InputError(f"times must rise, got {horizons.tolist()}")
    return horizons


def _cases(risk: ArrayLike, time: ArrayLike, event: ArrayLike) -> tuple[Floats, Floats, Bools]:
    r = finite_scores(risk, "risk")
    t, e = follow_up(time, event)
    if r.shape != t.shape:
        raise InputError(f"{len(t)} outcomes but risks of shape {r.shape}")
    return r, t, e
