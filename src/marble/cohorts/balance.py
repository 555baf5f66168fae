"""Whole groups (sites, or patients whose slides differ in class) into parts that share every stratum as it was asked.

    N  groups      P  parts      K  strata
    counts (N, K)                want (P, K) = share of the part x total of the stratum

The parts are as good as their distance from what was asked is small: sum over P and K of (filled - want)^2 / want.
Large groups are dealt first, each where it adds least to the distance. Then groups move, or change places in pairs, as
long as the distance shrinks: with a dozen patients, dealing alone often leaves a part without any slide of some class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

EXCHANGE_LIMIT = 500  # so many groups are dealt evenly enough, and pairs of them are too many to try
_PROGRESS = 1e-9  # smaller gains, relative to all that is dealt, may be rounding and could go round in circles


def deal(counts: Numbers, fractions: Sequence[float]) -> NDArray[np.intp]:
    """The part of every group.

    Args:
        counts: (N, K) what each group holds; the groups in the order of dealing.
        fractions: (P,) the share of each part, at most N of them.
    """
    want = np.outer(fractions, counts.sum(axis=0))  # (P, K)
    place = _deal_in_order(counts, want)
    while len(counts) <= EXCHANGE_LIMIT and _exchange(counts, want, place):
        pass
    return place


def distance(counts: Numbers, fractions: Sequence[float], place: NDArray[np.intp]) -> float:
    """How far the parts are from their shares."""
    want = np.outer(fractions, counts.sum(axis=0))
    return float((_surplus(counts, want, place) ** 2 / want).sum())


def _deal_in_order(counts: Numbers, want: Numbers) -> NDArray[np.intp]:
    place = np.full(len(counts), -1)
    surplus = -want
    for group, holds in enumerate(counts):
        added = ((2 * surplus + holds) * holds / want).sum(axis=1)  # (P,) to the distance
        empty = np.flatnonzero(np.bincount(place[:group], minlength=len(want)) == 0)
        if len(counts) - group <= len(empty):  # the last groups go to parts that would otherwise stay empty
            added[np.setdiff1d(np.arange(len(want)), empty)] = np.inf
        place[group] = added.argmin()
        surplus[place[group]] += holds
    return place


def _exchange(counts: Numbers, want: Numbers, place: NDArray[np.intp]) -> bool:
    """Make the one move or exchange that helps most; False if none does."""
    surplus = _surplus(counts, want, place)
    moved = _cost_of_moves(counts, want, place, surplus)  # (N, P)
    swapped = _cost_of_swaps(counts, want, place, surplus)  # (N, N)
    if min(moved.min(), swapped.min()) > -_PROGRESS * counts.sum():
        return False
    if moved.min() <= swapped.min():
        group, part = np.unravel_index(moved.argmin(), moved.shape)
        place[group] = part
    else:
        pair = list(np.unravel_index(swapped.argmin(), swapped.shape))
        place[pair] = place[pair[::-1]]
    return True


def _cost_of_moves(counts: Numbers, want: Numbers, place: NDArray[np.intp], surplus: Numbers) -> Numbers:
    """(N, P) what the distance gains if a group moves to a part; never the last group of its own."""
    leaving = ((counts - 2 * surplus[place]) * counts / want[place]).sum(axis=1)  # (N,)
    entering = ((2 * surplus + counts[:, None]) * counts[:, None] / want).sum(axis=2)  # (N, P)
    cost = leaving[:, None] + entering
    cost[np.arange(len(counts)), place] = np.inf
    cost[np.bincount(place, minlength=len(want))[place] == 1] = np.inf
    return np.asarray(cost, dtype=np.float64)


def _cost_of_swaps(counts: Numbers, want: Numbers, place: NDArray[np.intp], surplus: Numbers) -> Numbers:
    """(N, N) what the distance gains if two groups change places; never negative within a part."""
    cost = np.zeros((len(counts), len(counts)))
    for holds, wanted, excess in zip(counts.T, want.T[:, place], surplus.T[:, place], strict=True):  # each (N,)
        change = holds - holds[:, None]  # of the part of the row's group
        slope = 2 * excess / wanted
        cost += change * (slope[:, None] - slope) + change**2 * (1 / wanted[:, None] + 1 / wanted)
    return cost


def _surplus(counts: Numbers, want: Numbers, place: NDArray[np.intp]) -> Numbers:
    """(P, K) filled - want."""
    filled = np.zeros_like(want)
    np.add.at(filled, place, counts)
    return filled - want
