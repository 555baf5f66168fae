"""Metrics of resampled patients, thousands at a time.

A bootstrap sample is a vector of weights: how often each case was drawn. Every metric here takes weights (B, n) and
returns (B,) values, each equal to the plain metric of the sample written out; NaN where the sample leaves it undefined
(for example no positive case was drawn).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weights = NDArray[np.float64]  # (B, n)
WeightedMetric = Callable[[Weights], Floats]


def auc(positive: NDArray[np.bool_], score: Floats, weights: Weights) -> Floats:
    """Area under the ROC curve; ties count one half."""
    wins = (score[:, None] > score[None, :]) + 0.5 * (score[:, None] == score[None, :])  # (n, n)
    pos, neg = weights * positive, weights * ~positive  # (B, n)
    won: Floats = np.einsum("bi,bi->b", pos, neg @ wins.T)
    return _ratio(won, pos.sum(1) * neg.sum(1))


def macro_auc(truth: NDArray[np.int64], probability: Floats, weights: Weights) -> Floats:
    """Mean one-vs-rest AUC over all classes; undefined if any class is missing from the sample."""
    areas = np.stack([auc(truth == c, probability[:, c], weights) for c in range(probability.shape[1])])
    mean: Floats = areas.mean(axis=0)
    return mean


def concordance(risk: Floats, time: Floats, event: NDArray[np.bool_], weights: Weights) -> Floats:
    """Harrell's C; ties in risk count one half, ties in time are comparable if only one of the two has the event."""
    before = time[:, None] < time[None, :]
    tied = (time[:, None] == time[None, :]) & ~event[None, :]
    comparable = event[:, None] & (before | tied)
    np.fill_diagonal(comparable, val=False)
    agree = comparable * ((risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :]))
    top = np.einsum("bi,bi->b", weights, weights @ agree.T)
    return _ratio(top, np.einsum("bi,bi->b", weights, weights @ comparable.T.astype(np.float64)))


def accuracy(truth: NDArray[np.int64], predicted: NDArray[np.int64], weights: Weights) -> Floats:
    return _ratio(weights @ (truth == predicted), weights.sum(1))


def balanced_accuracy(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, weights: Weights) -> Floats:
    """Mean recall over all classes."""
    table = _confusion(truth, predicted, classes, weights)
    mean: Floats = _ratio(np.einsum("bcc->bc", table), table.sum(2)).mean(axis=1)
    return mean


def macro_f1(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, weights: Weights) -> Floats:
    """Mean F1 over all classes; undefined if a class is missing from the sample."""
    table = _confusion(truth, predicted, classes, weights)
    f1 = _ratio(2 * np.einsum("bcc->bc", table), table.sum(1) + table.sum(2))
    found: Floats = np.where((table.sum(2) > 0).all(1), f1.mean(1), np.nan)
    return found


def quadratic_kappa(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, weights: Weights) -> Floats:
    """Cohen's kappa with quadratic weights."""
    table = _confusion(truth, predicted, classes, weights)
    grade = np.arange(classes)
    cost = (grade[:, None] - grade[None, :]) ** 2
    drawn = np.maximum(table.sum((1, 2)), 1)[:, None, None]
    chance = table.sum(2)[:, :, None] * table.sum(1)[:, None, :] / drawn
    return 1 - _ratio((cost * table).sum((1, 2)), (cost * chance).sum((1, 2)))


def recall(of: NDArray[np.bool_], found: NDArray[np.bool_], weights: Weights) -> Floats:
    """Share of the cases `of` a kind (n,) that are `found` (n,): sensitivity, or specificity of the negatives."""
    return _ratio(weights @ (of & found), weights @ of)


def calibration_error(excess: Floats, place: NDArray[np.int64], bins: int, weights: Weights) -> Floats:
    """Expected calibration error from each case's excess of confidence (n,) and its bin (n,)."""
    by_bin = weights @ (excess[:, None] * np.eye(bins)[place])  # (B, bins)
    return _ratio(np.abs(by_bin).sum(1), weights.sum(1))


def _confusion(
    truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, weights: Weights
) -> NDArray[np.float64]:
    """(B, classes, classes): truth in rows."""
    cell = np.eye(classes * classes)[truth * classes + predicted]  # (n, classes * classes)
    table: Floats = (weights @ cell).reshape(-1, classes, classes)
    return table


def _ratio(top: Floats, bottom: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: Floats = np.where(bottom > 0, top / bottom, np.nan)
    return ratio
