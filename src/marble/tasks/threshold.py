"""The threshold of a yes-or-no question, chosen on validation cases.

Scores are log odds, log p(positive) - log p(negative): there the middle between two cases means the same everywhere,
while probabilities crowd at 0 and 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marble.errors import InputError
from marble.tasks.metric import Floats, Metric, Undefined, finite_scores

#: a probability of 0 counts as the smallest positive one, so that log odds stay finite
SMALLEST = np.nextafter(0.0, 1.0)


def log_odds(positive: ArrayLike, negative: ArrayLike) -> Floats:
    """From the probabilities (n,) of both classes: exact at both ends, where one of them is rounded to 1."""
    p, q = finite_scores(positive, "p"), finite_scores(negative, "p")
    odds: Floats = np.log(np.maximum(p, SMALLEST)) - np.log(np.maximum(q, SMALLEST))
    return odds


def choose_threshold(positive: ArrayLike, scores: ArrayLike) -> Metric:
    """The score at and above which a case is called positive that maximises sensitivity + specificity (Youden).

    It lies midway between two neighbouring scores. Of equally good ones the widest gap is taken, of equal gaps the one
    nearest to 0, of those the lower. Undefined where no threshold does better than chance.
    """
    truth, values = _binary(positive, scores)
    if truth.size == 0:
        return Undefined("no cases")
    if truth.all() or not truth.any():
        return Undefined("no negative case" if truth.all() else "no positive case")
    distinct = np.unique(values)  # rising
    if len(distinct) < 2:
        return Undefined("all scores are equal")
    missed = np.searchsorted(np.sort(values[truth]), distinct[1:], side="left")  # positives below each gap
    kept = np.searchsorted(np.sort(values[~truth]), distinct[1:], side="left")  # negatives below each gap
    positives, negatives = int(truth.sum()), int((~truth).sum())
    # Whole numbers, so that equal thresholds are equal: (sensitivity + specificity - 1) times positives and negatives.
    gain = kept * positives - missed * negatives
    best = int(gain.max())
    if best <= 0:
        return Undefined("no threshold does better than chance")
    gaps = np.diff(distinct)
    middles = distinct[:-1] + gaps / 2
    candidates = np.flatnonzero(gain == best)
    chosen = min(candidates, key=lambda k: (-gaps[k], abs(middles[k]), middles[k]))
    return float(middles[chosen])


def _binary(positive: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.bool_], Floats]:
    truth, values = np.asarray(positive), finite_scores(scores, "scores")
    if truth.shape != values.shape or truth.ndim != 1:
        raise InputError(f"labels and scores must be two lists of one length, got {truth.shape} and {values.shape}")
    if not np.isin(truth, (0, 1)).all():
        raise InputError("labels must be True (positive) or False, or 1 and 0")
    return truth.astype(np.bool_), values
