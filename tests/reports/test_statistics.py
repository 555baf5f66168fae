"""Intervals cover, tests keep their level, corrections are the textbook's."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from marble.errors import InputError
from marble.reports import statistics as stats
from marble.tasks.classification_metrics import CALIBRATION_BINS, confidence_excess, expected_calibration_error
from marble.tasks.weighted import auc, calibration_error

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


def test_delong_sums_by_patient_before_it_squares() -> None:
    """Obuchowski's clustered covariance, sum by sum."""
    rng = np.random.default_rng(6)
    patients = rng.integers(0, 9, 40)
    positive = rng.random(40) < 0.4
    scores = np.stack([rng.normal(size=40).round(1), rng.normal(size=40).round(1)]) + positive
    names = [f"p{patient}" for patient in patients]
    areas, covariance = stats.delong_covariance(positive, scores, names)
    plain_areas, plain = stats.delong_covariance(positive, scores)
    assert areas == pytest.approx(plain_areas)
    everyone = sorted(set(patients))
    positives, negatives = positive.sum(), (~positive).sum()
    by_positive, by_negative = np.zeros((2, len(everyone))), np.zeros((2, len(everyone)))
    for model in range(2):
        x, y = scores[model][positive], scores[model][~positive]
        for place, patient in enumerate(everyone):
            for p in scores[model][positive & (patients == patient)]:
                by_positive[model, place] += np.mean([float(p > q) + 0.5 * (p == q) for q in y]) - areas[model]
            for q in scores[model][~positive & (patients == patient)]:
                by_negative[model, place] += np.mean([float(p > q) + 0.5 * (p == q) for p in x]) - areas[model]
    with_positive, with_negative = len(set(patients[positive])), len(set(patients[~positive]))
    for i in range(2):
        for j in range(2):
            s10 = with_positive / ((with_positive - 1) * positives) * (by_positive[i] * by_positive[j]).sum()
            s01 = with_negative / ((with_negative - 1) * negatives) * (by_negative[i] * by_negative[j]).sum()
            s11 = len(everyone) / (len(everyone) - 1) * (by_positive[i] * by_negative[j]).sum()
            s11_t = len(everyone) / (len(everyone) - 1) * (by_positive[j] * by_negative[i]).sum()
            whole = s10 / positives + s01 / negatives + (s11 + s11_t) / (positives * negatives)
            assert covariance[i, j] == pytest.approx(whole, abs=1e-12)
    assert stats.delong_covariance(positive, scores, [str(i) for i in range(40)])[1] == pytest.approx(plain, abs=1e-15)


def test_delong_needs_two_patients_of_each_class() -> None:
    positive = np.array([True, True, False, False])
    with pytest.raises(InputError, match="two patients with cases of each class"):
        stats.delong_covariance(positive, np.zeros((1, 4)), ["a", "a", "b", "c"])


def test_delong_keeps_its_level_with_patients_of_several_slides() -> None:
    rng = np.random.default_rng(7)
    total, slides = 300, 6
    by_patient = by_slide = 0
    names = [f"p{i // slides}" for i in range(30 * slides)]
    for _ in range(total):
        positive = rng.random(len(names)) < np.repeat(rng.random(30), slides)
        person = rng.normal(size=(3, 30)).repeat(slides, axis=1)
        a, b = (positive + person[0] + person[k] + 0.5 * rng.normal(size=len(names)) for k in (1, 2))
        by_patient += stats.delong_test([(positive, a, b)], [names]).p < 0.05
        by_slide += stats.delong_test([(positive, a, b)], [[str(i) for i in range(len(names))]]).p < 0.05
    assert by_patient / total == pytest.approx(0.05, abs=0.04)
    assert by_slide / total > 0.15


def test_samples_skip_the_repeats_they_leave_undefined() -> None:
    bootstrap = stats.PatientBootstrap([["a", "b"], ["c", "d"]], replicates=400)
    positive = np.array([True, False])
    draws = bootstrap.means(
        [partial(auc, positive, np.array([1.0, 0.0])), partial(auc, positive, np.array([0.0, 1.0]))]
    )
    first, second = (
        (weights > 0).all(axis=1) for weights in bootstrap.weights
    )  # AUC 1 and AUC 0, where both are drawn
    expected = np.select([first & second, first, second], [0.5, 1.0, 0.0], np.nan)
    assert np.array_equal(draws.means, expected, equal_nan=True)
    assert draws.left_out == pytest.approx(1 - (first.mean() + second.mean()) / 2)
    assert np.isnan(draws.means).mean() > stats.UNDEFINED_LIMIT
    assert stats.bootstrap_interval(0.5, draws) is None
    assert stats.paired_bootstrap(0.0, draws, draws) is None


def test_intervals_cover_better_when_samples_skip_undefined_repeats() -> None:
    """16 patients in four folds, one of each fold positive: most samples leave some fold without a class.

    The intervals are still short of 95 %: in every fold a class rests on a single patient.
    """
    rng = np.random.default_rng(8)
    share = np.array([0.0, 0.0, 0.0, 1.0] * 4)  # of positive slides, by patient
    names = [f"p{i // 6:02}" for i in range(96)]
    folds = [slice(24 * k, 24 * k + 24) for k in range(4)]
    positive = np.tile(np.arange(6) / 6, 16) < share.repeat(6)
    bootstrap = stats.PatientBootstrap([names[fold] for fold in folds], replicates=400)

    def scored() -> np.ndarray:
        return positive + rng.normal(size=16).repeat(6) + 0.5 * rng.normal(size=96)

    def metrics(score: np.ndarray) -> list[partial[np.ndarray]]:
        return [partial(auc, positive[fold], score[fold]) for fold in folds]

    whole = np.ones((1, 24))
    truth = np.mean([[metric(whole)[0] for metric in metrics(scored())] for _ in range(1000)])
    skipped = dropped = 0
    total = 300
    for _ in range(total):
        made = metrics(scored())
        interval = stats.bootstrap_interval(0.0, bootstrap.means(made))
        assert interval is not None
        skipped += interval.low <= truth <= interval.high
        by_fold = [metric(weights) for metric, weights in zip(made, bootstrap.weights, strict=True)]
        low, high = np.nanquantile(np.mean(by_fold, axis=0), [0.025, 0.975])
        dropped += low <= truth <= high
    assert skipped / total > 0.85
    assert dropped / total < 0.7


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
            assert interval is not None
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
        first, second = (bootstrap.means([partial(auc, positive, x)]) for x in (a, b))
        paired = stats.paired_bootstrap(0.0, first, second)
        assert paired is not None
        boot += paired.p < 0.05
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
    draws = stats.Draws(np.linspace(0, 1, 100), 0.0)
    same = stats.paired_bootstrap(0.0, draws, draws)
    assert same is not None
    assert same.p == 1.0


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


def _confidences(rng: np.random.Generator, n: int, too_sure: float) -> tuple[np.ndarray, np.ndarray]:
    """Truth (n,) and probabilities (n, 2) of a model whose confidence is `too_sure` more than its share of hits."""
    confidence = rng.uniform(0.5, 1, n) ** 0.7
    right = rng.random(n) < confidence - too_sure
    return np.where(right, 0, 1), np.stack([confidence, 1 - confidence], axis=1)


def test_the_interval_of_a_calibration_error_holds_the_error_and_more_often_the_truth() -> None:
    """A tenth too sure, 20 patients: the samples as drawn cover the truth in three quarters of tables."""
    rng = np.random.default_rng(4)
    moved = as_drawn = outside = 0
    total = 300
    for trial in range(total):
        truth, p = _confidences(rng, 20, too_sure=0.1)
        value = expected_calibration_error(truth, p)
        assert isinstance(value, float)
        metric = partial(calibration_error, *confidence_excess(truth, p), CALIBRATION_BINS)
        draws = stats.PatientBootstrap([[f"p{i}" for i in range(20)]], replicates=400, seed=trial).means([metric])
        plain, held = stats.bootstrap_interval(value, draws), stats.bootstrap_interval(value, draws.around(value))
        assert plain is not None
        assert held is not None
        outside += not held.low <= value <= held.high
        as_drawn += plain.low <= 0.1 <= plain.high
        moved += held.low <= 0.1 <= held.high
    assert outside == 0
    assert as_drawn / total < 0.82
    assert moved / total > 0.85


def test_moved_samples_keep_their_spread_and_do_not_go_below_zero() -> None:
    draws = stats.Draws(np.array([0.1, 0.2, np.nan, 0.6]), left_out=0.25)
    moved = draws.around(0.2)
    assert moved.means == pytest.approx([0.0, 0.1, np.nan, 0.5], nan_ok=True)
    assert moved.left_out == 0.25
    assert draws.around(0.05).means[0] == 0.0


def test_no_p_is_smaller_than_exchanging_the_answers_of_so_few_patients_can_show() -> None:
    """Where one model is always right and the other says nothing, DeLong's variance is 0; by brute force."""
    positive = np.array([True, True, False, False, False])
    right, constant = positive.astype(float), np.full(5, 0.5)
    found = stats.delong_test([(positive, right, constant)], [["a", "b", "c", "d", "e"]])
    assert found.p == 0.0
    seen = []
    for exchanged in itertools.product((False, True), repeat=5):
        first, second = np.where(exchanged, constant, right), np.where(exchanged, right, constant)
        seen.append(abs(roc_auc_score(positive, first) - roc_auc_score(positive, second)))
    assert found.of_patients(5).p == np.mean(np.array(seen) >= found.difference) == 2 / 32
    assert stats.Paired(0.1, 0.0, 0.2, 0.3, "DeLong").of_patients(5).p == 0.3
    assert stats.Paired(0.1, 0.0, 0.2, 0.0, "DeLong").of_patients(1).p == 1.0
