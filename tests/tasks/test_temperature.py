"""The temperature against a brute-force grid, and the calibration error against a loop over bins."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marble.tasks.base import Answered
from marble.tasks.classification import Classification
from marble.tasks.classification_metrics import expected_calibration_error
from marble.tasks.metric import Undefined
from marble.tasks.temperature import FOLDS, calibrate_temperature, fit_temperature, mean_nll


def _cases(seed: int, n: int, k: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    scores = rng.normal(size=(n, k))
    scores[np.arange(n), truth] += 1.0
    return scores * spread, truth


def _nll(scores: np.ndarray, truth: np.ndarray, temperature: float) -> float:
    total = 0.0
    for row, label in zip(scores, truth, strict=True):
        largest = max(row) / temperature
        total -= row[label] / temperature - largest - math.log(sum(math.exp(a / temperature - largest) for a in row))
    return total / len(truth)


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("k", [2, 4])
def test_it_is_the_best_of_a_fine_grid(k: int, spread: float) -> None:
    for seed in range(5):
        scores, truth = _cases(seed, 40, k, spread)
        found = fit_temperature(scores, truth)
        assert not isinstance(found, Undefined)
        grid = np.exp(np.linspace(math.log(found) - 2, math.log(found) + 2, 401))
        best = min(_nll(scores, truth, t) for t in grid)
        assert _nll(scores, truth, found) <= best + 1e-12
        assert mean_nll(scores, truth, found) == pytest.approx(_nll(scores, truth, found), abs=1e-12)


def test_a_scaled_classifier_is_scaled_back() -> None:
    scores, truth = _cases(0, 60, 3, 1.0)
    once, ten = fit_temperature(scores, truth), fit_temperature(10 * scores, truth)
    assert not isinstance(once, Undefined)
    assert ten == pytest.approx(10 * once, rel=1e-9)


def test_there_is_none_where_all_are_right_or_nothing_is_known() -> None:
    truth = np.array([0, 1, 1])
    assert "every case is right" in str(fit_temperature(np.eye(2)[truth], truth))
    assert "do not tell the classes apart" in str(fit_temperature(-np.eye(2)[truth], truth))
    record = calibrate_temperature(np.eye(2)[truth], truth)
    assert (record["temperature"], record["used"], record["fitted"]) == (1.0, False, None)
    assert "every case is right" in record["reason"]


def test_it_is_used_only_where_it_helps_cases_it_was_not_fitted_on() -> None:
    verdicts = set()
    for seed in range(30):
        scores, truth = _cases(seed, 12, 2, 1.0 if seed % 2 else 6.0)
        record = calibrate_temperature(scores, truth)
        if record["fitted"] is None:
            continue
        held_out = []
        for case in range(len(truth)):  # fewer cases than folds: each is its own fold
            others = np.arange(len(truth)) != case
            fitted = fit_temperature(scores[others], truth[others])
            t = 1.0 if isinstance(fitted, Undefined) else fitted
            held_out.append(_nll(scores[[case]], truth[[case]], t))
        assert len(truth) <= FOLDS
        assert record["nll"]["held_out"] == pytest.approx(float(np.mean(held_out)), abs=1e-9)
        assert record["used"] == (float(np.mean(held_out)) < _nll(scores, truth, 1.0))
        assert record["temperature"] == (record["fitted"] if record["used"] else 1.0)
        assert record["nll"]["after"] <= record["nll"]["before"]
        verdicts.add(record["used"])
    assert verdicts == {True, False}


@pytest.mark.parametrize("loss", ["cross-entropy", "multi-label-bce", "bernoulli"])
def test_a_temperature_takes_confidence_and_leaves_the_class(loss: str) -> None:
    task = Classification(("a", "b"), loss=loss)  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    logits = 5 * rng.normal(size=(30, task.outputs))
    targets = ["ab"[int(k)] for k in rng.integers(0, 2, 30)]
    for row, target in zip(logits, targets, strict=True):
        row[-1] += 2.0 if target == "b" else -2.0
    found = task.calibrate({"val": Answered(targets, logits)})
    assert found["used"]
    assert found["temperature"] > 1
    for row in logits:
        plain, cooled = (task.readout(torch.from_numpy(row), c) for c in (None, found))
        assert max(cooled.values()) < max(plain.values())
        assert task.decide(plain, {}).label == task.decide(cooled, found).label
        assert sum(cooled.values()) == pytest.approx(1.0, abs=1e-12)


def test_the_calibration_error_is_that_of_a_loop_over_bins() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        k, n = int(rng.integers(2, 5)), int(rng.integers(1, 40))
        truth, p = rng.integers(0, k, n), rng.dirichlet(np.ones(k) * rng.uniform(0.2, 2), n)
        total = 0.0
        for low in range(10):
            inside = [i for i in range(n) if low / 10 < p[i].max() <= (low + 1) / 10]
            if inside:
                confidence = sum(p[i].max() for i in inside) / len(inside)
                right = sum(int(p[i].argmax() == truth[i]) for i in inside) / len(inside)
                total += len(inside) / n * abs(confidence - right)
        assert expected_calibration_error(truth, p) == pytest.approx(total, abs=1e-12)


def test_slides_of_one_patient_are_left_out_together() -> None:
    """Six patients of four slides that say nearly the same: by slide, a temperature would be tried on its patients."""
    scores, truth = (np.repeat(each, 4, axis=0) for each in _cases(5, 6, 2, 6.0))
    scores = scores + 0.01 * np.random.default_rng(0).normal(size=scores.shape)
    patients = [f"p{i // 4}" for i in range(24)]
    held_out = []
    for case, name in enumerate(patients):
        others = np.array([other != name for other in patients])
        fitted = fit_temperature(scores[others], truth[others])
        held_out.append(_nll(scores[[case]], truth[[case]], 1.0 if isinstance(fitted, Undefined) else fitted))
    record = calibrate_temperature(scores, truth, patients)
    assert record["nll"]["held_out"] == pytest.approx(float(np.mean(held_out)), abs=1e-9)
    assert record["nll"]["held_out"] != pytest.approx(calibrate_temperature(scores, truth)["nll"]["held_out"], abs=1e-3)
    assert calibrate_temperature(scores, truth, [str(i) for i in range(24)]) == calibrate_temperature(scores, truth)
    asked = Answered(["ab"[label] for label in truth], scores, patients)
    assert Classification(("a", "b")).calibrate({"val": asked})["nll"] == record["nll"]
