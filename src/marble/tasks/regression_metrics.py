"""Scores of predicted numbers; and the same over resampled cases, as functions of weights (B, n).

What cases cannot have is undefined: with fewer than two different targets there is no R2, and with fewer than two
different predictions no correlation.
"""

from __future__ import annotations

import numpy as np

from marble.tasks.metric import Floats, Metric, Undefined

NO_CASES = Undefined("no cases")
EQUAL_TARGETS = Undefined("all targets are equal")
EQUAL_PREDICTIONS = Undefined("all predictions are equal")


def r2(truth: Floats, predicted: Floats) -> Metric:
    """1 minus the squared errors over those of the mean of these very targets; negative if worse than that mean."""
    if (lack := _lacking(truth, None)) is not None:
        return lack
    return float(1 - np.square(truth - predicted).sum() / np.square(truth - truth.mean()).sum())


def mean_absolute_error(truth: Floats, predicted: Floats) -> Metric:
    if truth.size == 0:
        return NO_CASES
    return float(np.abs(truth - predicted).mean())


def pearson(truth: Floats, predicted: Floats) -> Metric:
    """Linear correlation."""
    if (lack := _lacking(truth, predicted)) is not None:
        return lack
    return float(weighted_pearson(truth, predicted, np.ones((1, len(truth))))[0])


def spearman(truth: Floats, predicted: Floats) -> Metric:
    """Correlation of ranks; ties share the mean of their ranks."""
    if (lack := _lacking(truth, predicted)) is not None:
        return lack
    return float(weighted_spearman(truth, predicted, np.ones((1, len(truth))))[0])


def weighted_r2(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    total = weights.sum(1)
    centre = truth - truth.mean()  # near 0, so that the difference of squares below keeps its digits
    mean = _over(weights @ centre, total)
    spread = np.einsum("bn,bn->b", weights, np.square(centre[None, :] - mean[:, None]))
    errors = weights @ np.square(truth - predicted)
    return _where_varied(1 - _over(errors, spread), weights, truth)


def weighted_absolute_error(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    return _over(weights @ np.abs(truth - predicted), weights.sum(1))


def weighted_pearson(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    ones = np.ones((len(weights), 1))
    found = _correlation(ones * truth[None, :], ones * predicted[None, :], weights)
    return _where_varied(_where_varied(found, weights, truth), weights, predicted)


def weighted_spearman(truth: Floats, predicted: Floats, weights: Floats) -> Floats:
    found = _correlation(_ranks(truth, weights), _ranks(predicted, weights), weights)
    return _where_varied(_where_varied(found, weights, truth), weights, predicted)


def _ranks(values: Floats, weights: Floats) -> Floats:
    """Mean rank of each case in each sample (B, n), where a case drawn w times stands w times."""
    below = (values[None, :] < values[:, None]).astype(np.float64)  # (n, n): others below each
    equal = (values[None, :] == values[:, None]).astype(np.float64)
    ranks: Floats = weights @ below.T + (weights @ equal.T + 1) / 2
    return ranks


def _correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Of x and y (B, n) under weights (B, n)."""
    total = weights.sum(1)[:, None]
    x = x - _over((weights * x).sum(1)[:, None], total)
    y = y - _over((weights * y).sum(1)[:, None], total)
    both = (weights * x * y).sum(1)
    return np.clip(_over(both, np.sqrt((weights * x * x).sum(1) * (weights * y * y).sum(1))), -1.0, 1.0)


def _where_varied(found: Floats, weights: Floats, values: Floats) -> Floats:
    """NaN for samples in which all values drawn are equal, whatever rounding made of them."""
    drawn = weights > 0
    low, high = (np.where(drawn, values[None, :], end) for end in (np.inf, -np.inf))
    return np.where(low.min(axis=1) < high.max(axis=1), found, np.nan)


def _over(top: Floats, bottom: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: Floats = np.where(bottom > 0, top / bottom, np.nan)
    return ratio


def _lacking(truth: Floats, predicted: Floats | None) -> Undefined | None:
    if truth.size == 0:
        return NO_CASES
    if np.ptp(truth) == 0:
        return EQUAL_TARGETS
    return EQUAL_PREDICTIONS if predicted is not None and np.ptp(predicted) == 0 else None
