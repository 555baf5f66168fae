"""Scores of class predictions. A class without cases makes a metric undefined; it is never skipped in silence.

`truth` (n,) and `predicted` (n,) are class indices; `probability` (n, K) holds one row per case.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marble.errors import InputError
from marble.tasks.base import Floats, Ints, Metric, Undefined, finite_scores


def auc(truth: Ints, probability: Floats, classes: Sequence[str]) -> Metric:
    """Probability that a case of the class scores above a case of another; a tie counts one half.

    Of two classes the second is scored; of more, the mean over classes, each against all others.
    """
    if (lack := _lacking_class(truth, classes)) is not None:
        return lack
    scored = [1] if len(classes) == 2 else range(len(classes))
    return float(np.mean([_pairs_won(probability[truth == k, k], probability[truth != k, k]) for k in scored]))


def _pairs_won(inside: Floats, outside: Floats) -> float:
    """Share of pairs in which the case inside the class scores higher: whole numbers until the one division."""
    others = np.sort(outside)
    halves = np.searchsorted(others, inside, side="left") + np.searchsorted(others, inside, side="right")
    return int(halves.sum()) / (2 * len(inside) * len(others))


def accuracy(truth: Ints, predicted: Ints) -> Metric:
    if truth.size == 0:
        return Undefined("no cases")
    return float(np.mean(truth == predicted))


def balanced_accuracy(truth: Ints, predicted: Ints, classes: Sequence[str]) -> Metric:
    """Mean over classes of the share of its cases that are found."""
    if (lack := _lacking_class(truth, classes)) is not None:
        return lack
    table = confusion(truth, predicted, len(classes))
    return float(np.mean(np.diag(table) / table.sum(axis=1)))


def macro_f1(truth: Ints, predicted: Ints, classes: Sequence[str]) -> Metric:
    """Mean over classes of F1, for two classes too: the choice of a positive class does not change it."""
    if (lack := _lacking_class(truth, classes)) is not None:
        return lack
    table = confusion(truth, predicted, len(classes))
    return float(np.mean(2 * np.diag(table) / (table.sum(axis=0) + table.sum(axis=1))))


def quadratic_kappa(truth: Ints, predicted: Ints, classes: Sequence[str]) -> Metric:
    """Agreement beyond chance, errors weighted by squared distance: `classes` must be in the order of their grades.

    A class without cases leaves it defined; one class alone, given by both sides, does not.
    """
    if truth.size == 0:
        return Undefined("no cases")
    seen = confusion(truth, predicted, len(classes))
    grade = np.arange(len(classes))
    penalty = np.square(grade[:, None] - grade[None, :])  # (K, K)
    by_chance = np.outer(seen.sum(axis=1), seen.sum(axis=0))  # n times the table expected of independent raters
    expected = int((penalty * by_chance).sum())
    if expected == 0:
        return Undefined(f"all cases are, and are called, '{classes[int(truth[0])]}'")
    return 1.0 - float((penalty * seen).sum() * truth.size / expected)


def confusion(truth: Ints, predicted: Ints, classes: int) -> Ints:
    """(K, K) counts: rows are true classes, columns predicted ones."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def youden_threshold(positive: ArrayLike, scores: ArrayLike) -> Metric:
    """The score at and above which a case is called positive that maximises sensitivity + specificity.

    Choose it on validation cases only. Among equally good thresholds the highest is taken (fewest false alarms).
    """
    truth, values = _binary(positive, scores)
    if (lack := _lacking_side(truth)) is not None:
        return lack
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last_of_tie = np.append(np.diff(ordered) != 0, True)
    found = np.cumsum(truth[order])[last_of_tie]  # positives at or above each distinct score
    alarms = np.cumsum(~truth[order])[last_of_tie]
    # Whole numbers, so that equal thresholds are equal: TPR - FPR times positives times negatives.
    gain = found * int((~truth).sum()) - alarms * int(truth.sum())
    return float(ordered[last_of_tie][int(np.argmax(gain))])


def _binary(positive: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.bool_], Floats]:
    truth, values = np.asarray(positive), finite_scores(scores, "scores")
    if truth.shape != values.shape or truth.ndim != 1:
        raise InputError(f"labels and scores must be two lists of one length, got {truth.shape} and {values.shape}")
    if not np.isin(truth, (0, 1)).all():
        raise InputError("labels must be True (positive) or False, or 1 and 0")
    return truth.astype(np.bool_), values


def _lacking_side(truth: NDArray[np.bool_]) -> Undefined | None:
    if truth.size == 0:
        return Undefined("no cases")
    if not truth.any():
        return Undefined("no positive case")
    return Undefined("no negative case") if truth.all() else None


def _lacking_class(truth: Ints, classes: Sequence[str]) -> Undefined | None:
    if truth.size == 0:
        return Undefined("no cases")
    missing = [name for k, name in enumerate(classes) if not (truth == k).any()]
    if not missing:
        return None
    return Undefined("no case of class " + ", ".join(f"'{name}'" for name in missing))
