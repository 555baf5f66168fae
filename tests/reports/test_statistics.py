"""Intervals cover, tests keep their level, corrections are the textbook's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from marble.errors import InputError
from marble.reports import statistics as stats
from marble.reports.weighted import auc

TRUE_AUC = float(norm.cdf(1 / 2**0.5))  # of two unit normals one apart
TRUE_AUC_WITH_NOISE = float(norm.cdf(1 / (2 * 1.01) ** 0.5))  # the same with a little noise added


def _normals(rng: np.random.Generator, n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    positive = np.arange(n) % 2 == 0
    return positive, rng.normal(size=n) + positive


def test_delong_equals_the_brute_force_variance_of_placements() -> None:
    rng = np.random.default_rng(0)
    positive, a = _normals(rng, 21)
    b = a.round() + rng.normal(size=21).round()
    areas, covariance = stats.delong_covariance(positive, np.stack([a, b]))
    assert areas == pytest.approx([roc_auc_score(positive, a), roc_auc_score(positive, b)], abs=1e-12)
    for i, x in enumerate((a, b)):
        for j, y in enumerate((a, b)):
            placements = []
            for scores in (x, y):
                wins = np.array([[float(p > q) + 0.5 * (p == q) for q in scores[~positive]] for p in scores[positive]])
                placements.append((wins.mean(1), wins.mean(0)))
            by_pos = np.cov(placements[0][0], placements[1][0])[0, 1] / positive.sum()
            by_neg = np.cov(placements[0][1], placements[1][1])[0, 1] / (~positive).sum()
            assert covariance[i, j] == pytest.approx(by_pos + by_neg, abs=1e-12)


def test_delong_needs_two_of_each_class() -> None:
    with pytest.raises(InputError, match="two cases of each class"):
        stats.delong_covariance(np.array([True, False, False]), np.zeros((1, 3)))


def test_delong_interval_covers() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(3000):
        interval = stats.delong_interval(*_normals(rng))
        hits += interval.low <= TRUE_AUC <= interval.high
    assert hits / 3000 == pytest.approx(0.95, abs=0.02)


def test_bootstrap_interval_covers_with_patients_of_several_slides() -> None:
    """Both rows of a patient share most of their noise; resampling rows instead of patients would be too sure."""
    rng = np.random.default_rng(2)
    hits = rows_hits = 0
    total = 1000
    patients = [f"p{i // 2}" for i in range(160)]
    for trial in range(total):
        person = rng.normal(size=80)
        score = np.repeat(person + (np.arange(80) % 2 == 0), 2) + 0.1 * rng.normal(size=160)
        positive = np.repeat(np.arange(80) % 2 == 0, 2)
        truth = TRUE_AUC_WITH_NOISE
        for names, counter in ((patients, "patients"), ([f"r{i}" for i in range(160)], "rows")):
            draws = stats.PatientBootstrap([names], replicates=400, seed=trial).means([partial(auc, positive, score)])
            interval = stats.bootstrap_interval(0.0, draws)
            inside = interval.low <= truth <= interval.high
            hits += inside and counter == "patients"
            rows_hits += inside and counter == "rows"
    assert hits / total == pytest.approx(0.95, abs=0.02)
    assert rows_hits / total < 0.9


def test_paired_tests_keep_their_level_without_a_difference() -> None:
    rng = np.random.default_rng(3)
    delong = boot = 0
    total = 400
    for trial in range(total):
        positive, base = _normals(rng)
        a, b = base + rng.normal(size=120), base + rng.normal(size=120)
        names = [f"p{i}" for i in range(120)]
        delong += stats.delong_test([(positive, a, b)], [names]).p < 0.05
        bootstrap = stats.PatientBootstrap([names], replicates=400, seed=trial)
        difference = bootstrap.means([partial(auc, positive, a)]) - bootstrap.means([partial(auc, positive, b)])
        boot += stats.paired_bootstrap(0.0, difference).p < 0.05
    assert delong / total == pytest.approx(0.05, abs=0.03)
    assert boot / total == pytest.approx(0.05, abs=0.03)


def test_overlapping_repeats_do_not_make_the_test_surer() -> None:
    rng = np.random.default_rng(4)
    positive, a = _normals(rng)
    b = a + 0.8 * rng.normal(size=120)
    names = [f"p{i}" for i in range(120)]
    once = stats.delong_test([(positive, a, b)], [names])
    same_five_times = stats.delong_test([(positive, a, b)] * 5, [names] * 5)
    assert same_five_times.p == pytest.approx(once.p)
    others = [[f"{fold}-{name}" for name in names] for fold in range(5)]
    assert stats.delong_test([(positive, a, b)] * 5, others).p < once.p


def test_identical_models_do_not_differ() -> None:
    positive, a = _normals(np.random.default_rng(5))
    paired = stats.delong_test([(positive, a, a)], [[str(i) for i in range(120)]])
    assert (paired.difference, paired.p) == (0.0, 1.0)
    assert stats.paired_bootstrap(0.0, np.zeros(100)).p == 1.0


def test_holm() -> None:
    # worked by hand: 0.01 * 4, 0.02 * 3, max(0.03 * 2, 0.06), max(0.5, ...)
    assert stats.holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert stats.holm([]) == []


def test_repeated_patients_are_drawn_together() -> None:
    bootstrap = stats.PatientBootstrap([["a", "b", "c"], ["c", "a"]], replicates=50)
    first, second = bootstrap.weights
    assert np.array_equal(first[:, 2], second[:, 0])
    assert np.array_equal(first[:, 0], second[:, 1])
    assert (first.sum(1) == 3).all()
