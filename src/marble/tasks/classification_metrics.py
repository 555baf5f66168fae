"""Scores of class predictions. A class without cases makes a metric undefined; it is never skipped in silence.

`truth` (n,) and `predicted` (n,) are class indices; `probability` (n, K) holds one row per case.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marble.tasks.metric import Floats, Ints, Metric, Undefined

CALIBRATION_BINS = 10


def auc(truth: Ints, probability: Floats, classes: Sequence[str], positive: int = 1) -> Metric:
    """Probability that a case of the class scores above a case of another; a tie counts one half.

    Of two classes the positive one is scored; of more, the mean over classes, each against all others.
    """
    if (lack := _lacking_class(truth, classes)) is not None:
        return lack
    scored = [positive] if len(classes) == 2 else range(len(classes))
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


def sensitivity(truth: Ints, predicted: Ints, positive: int) -> Metric:
    """Share of the positive cases that are called positive."""
    if not (truth == positive).any():
        return Undefined("no positive case")
    return float(np.mean(predicted[truth == positive] == positive))


def specificity(truth: Ints, predicted: Ints, positive: int) -> Metric:
    """Share of the negative cases that are called negative."""
    if not (truth != positive).any():
        return Undefined("no negative case")
    return float(np.mean(predicted[truth != positive] != positive))


def expected_calibration_error(truth: Ints, probability: Floats) -> Metric:
    """How far confidence is from being right: |mean confidence - share right|, averaged over bins of confidence.

    Confidence is the probability of the most probable class; bins are ten of equal width, each with its upper edge.
    """
    if truth.size == 0:
        return Undefined("no cases")
    excess, place = confidence_excess(truth, probability)
    return float(np.abs(np.bincount(place, excess, CALIBRATION_BINS)).sum() / truth.size)


def confidence_excess(truth: Ints, probability: Floats) -> tuple[Floats, Ints]:
    """Confidence minus right (1) or wrong (0) of each case (n,), and its bin of confidence (n,)."""
    confidence = probability.max(axis=1)
    excess: Floats = confidence - (probability.argmax(axis=1) == truth)
    place = np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1
    return excess, np.clip(place, 0, CALIBRATION_BINS - 1)


def _lacking_class(truth: Ints, classes: Sequence[str]) -> Undefined | None:
    if truth.size == 0:
        return Undefined("no cases")
    missing = [name for k, name in enumerate(classes) if not (truth == k).any()]
    if not missing:
        return None
    return Undefined("no case of class " + ", ".join(f"'{name}'" for name in missing))
