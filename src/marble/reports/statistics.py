"""Intervals and paired tests that respect the patient: bootstrap over patients, DeLong, Holm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from marble.errors import InputError
from marble.tasks.weighted import WeightedMetric

Floats = NDArray[np.float64]
REPLICATES = 2000
LEVEL = 0.95
UNDEFINED_LIMIT = 0.2  # of the samples


@dataclass(frozen=True)
class Interval:
    """An estimate and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """A difference between two models on the same patients, and the probability of one as large by chance."""

    difference: float
    low: float
    high: float
    p: float
    test: str

    def of_patients(self, patients: int) -> Paired:
        """The same, with no smaller p than so many patients can show.

        Were the models equal, each patient's two answers could as well be exchanged: of the 2^n ways to do so the one
        that was seen and its mirror image are the most extreme. Tests that rely on many patients know no such limit:
        where one model is always right and the other constant, DeLong's variance is 0 and its p too, of four patients.
        """
        return replace(self, p=min(1.0, max(self.p, 2.0 ** (1 - patients))))


@dataclass(frozen=True)
class Draws:
    """A metric of B samples of patients.

    With few test patients a sample may leave a repeat undefined (a class was not drawn). The mean is then over the
    other repeats. To drop such samples altogether would keep only those that hold the same few patients: with 16
    patients in four folds, one of each fold positive, simulated intervals cover the truth in 57 % of cases instead of
    90 %.
    """

    means: Floats  # (B,) over the repeats; NaN where every repeat is undefined
    left_out: float  # share of repeats, over all samples, that were

    def around(self, value: float) -> Draws:
        """The samples of a metric from 0 up, moved so that their mean is the estimate's `value`.

        For metrics that every resampling inflates: as drawn, the interval of a well calibrated model's ECE lies above
        the ECE itself, and holds the truth less often than the moved one (simulated in the tests).
        """
        return Draws(np.maximum(self.means + (value - np.nanmean(self.means)), 0.0), self.left_out)


class PatientBootstrap:
    """Resamples patients, not rows: a patient who is tested in several repeats is drawn in all of them or in none.

    Args:
        patients: for each repeat, the patient of every row.
        seed: the samples are a function of it and of the patients' names.
    """

    def __init__(self, patients: Sequence[Sequence[str]], replicates: int = REPLICATES, seed: int = 0) -> None:
        everyone = sorted({name for repeat in patients for name in repeat})
        index = {name: place for place, name in enumerate(everyone)}
        rng = np.random.default_rng(seed)
        draws = rng.multinomial(len(everyone), np.full(len(everyone), 1 / len(everyone)), size=replicates)
        self.weights = [draws[:, [index[name] for name in repeat]].astype(np.float64) for repeat in patients]  # (B, n)

    def means(self, metrics: Sequence[WeightedMetric]) -> Draws:
        """Mean over the repeats of a metric, one function of weights for each repeat."""
        values = np.stack([metric(weights) for metric, weights in zip(metrics, self.weights, strict=True)])  # (R, B)
        known = np.isfinite(values)
        count = known.sum(axis=0)
        means = np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
        return Draws(means, float(1 - known.mean()))


def bootstrap_interval(value: float, draws: Draws, level: float = LEVEL) -> Interval | None:
    """Percentile interval; None if too many samples leave the metric undefined for the others to speak for them."""
    known = _known(draws.means)
    if known is None:
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def paired_bootstrap(difference: float, first: Draws, second: Draws, level: float = LEVEL) -> Paired | None:
    """Two-sided test of a difference from its bootstrap distribution over the same draws of patients.

    None if too many samples leave the difference undefined.
    """
    known = _known(first.means - second.means)
    if known is None:
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    below, above = float(np.mean(known <= 0)), float(np.mean(known >= 0))
    floor = 1 / (len(known) + 1)  # a p-value of 0 would claim more than the number of samples can show
    p = min(1.0, max(floor, 2 * min(below, above)))
    return Paired(difference, float(low), float(high), p, "paired bootstrap over patients")


def _known(replicates: Floats) -> Floats | None:
    """The samples that have a value; None if they are too few to speak for the others."""
    known = replicates[np.isfinite(replicates)]
    return known if len(known) >= (1 - UNDEFINED_LIMIT) * len(replicates) else None


def delong_covariance(
    positive: NDArray[np.bool_], scores: Floats, patients: Sequence[str] | None = None
) -> tuple[Floats, Floats]:
    """AUCs (m,) and their covariance (m, m) for scores (m, n) of m models on the same n cases.

    Cases of one patient are not independent; with `patients` given, deviations are summed by patient first (Obuchowski
    1997). With one case per patient that is DeLong's covariance.
    """
    pos, neg = scores[:, positive], scores[:, ~positive]  # (m, P), (m, N)
    names = np.arange(len(positive)) if patients is None else np.unique(np.array(patients), return_inverse=True)[1]
    of_positive, of_negative = len(np.unique(names[positive])), len(np.unique(names[~positive]))
    if min(of_positive, of_negative) < 2:
        what = "two cases of each class" if patients is None else "two patients with cases of each class"
        raise InputError(f"DeLong needs at least {what}")
    wins = (pos[:, :, None] > neg[:, None, :]) + 0.5 * (pos[:, :, None] == neg[:, None, :])  # (m, P, N)
    areas = wins.mean((1, 2))  # (m,)
    everyone = int(names.max()) + 1
    by_positive, by_negative = (  # (m, patients)
        np.stack([np.bincount(names[side], row, everyone) for row in placed - areas[:, None]]) / placed.shape[1]
        for side, placed in ((positive, wins.mean(2)), (~positive, wins.mean(1)))
    )
    crossed = everyone / (everyone - 1) * by_positive @ by_negative.T
    covariance = (
        of_positive / (of_positive - 1) * by_positive @ by_positive.T
        + of_negative / (of_negative - 1) * by_negative @ by_negative.T
        + crossed
        + crossed.T
    )
    return areas, covariance


def delong_test(
    repeats: Sequence[tuple[NDArray[np.bool_], Floats, Floats]],
    patients: Sequence[Sequence[str]],
    level: float = LEVEL,
) -> Paired:
    """Is the mean AUC over the repeats different between two models?

    `repeats` holds (positive, scores of the first, scores of the second). Repeats that share test patients are not
    independent; their errors are taken as fully correlated, which can only make the test more careful. Repeats without
    a common patient (the folds of a cross-validation) are independent.
    """
    differences, deviations = [], []
    for (positive, first, second), names in zip(repeats, patients, strict=True):
        areas, covariance = delong_covariance(positive, np.stack([first, second]), names)
        differences.append(areas[0] - areas[1])
        deviations.append(sqrt(max(0.0, covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])))
    sets = [set(names) for names in patients]
    shared = np.array([[bool(a & b) for b in sets] for a in sets], dtype=np.float64)
    sd = np.array(deviations)
    deviation = sqrt(float(sd @ shared @ sd)) / len(sd)
    mean = float(np.mean(differences))
    if deviation == 0:
        return Paired(mean, mean, mean, 1.0 if mean == 0 else 0.0, "DeLong")
    half = float(norm.ppf((1 + level) / 2)) * deviation
    return Paired(mean, mean - half, mean + half, float(2 * norm.sf(abs(mean) / deviation)), "DeLong")


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for all tests of one table."""
    order = np.argsort(p_values)
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
