"""Regression against scikit-learn and scipy; its loss against the formulas; its resampled scores against samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from marble.errors import InputError, SpecError
from marble.targets import SurvivalTime
from marble.tasks.metric import Undefined
from marble.tasks.registry import task_class
from marble.tasks.regression import Regression

TASK = Regression()


def _cases(seed: int, n: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(50, 20, n)
    predicted = truth * rng.uniform(-1, 2) + rng.normal(0, 20, n)
    return (truth.round(-1), predicted.round(-1)) if ties else (truth, predicted)


@pytest.mark.parametrize("ties", [False, True])
def test_metrics_equal_scikit_learn_and_scipy(ties: bool) -> None:
    for seed in range(100):
        truth, predicted = _cases(seed, 3 + seed % 40, ties)
        ours = TASK.metrics(truth.tolist(), {"value": predicted})
        assert ours["mae"] == pytest.approx(sk.mean_absolute_error(truth, predicted), abs=1e-12)
        if np.ptp(truth) == 0:
            assert str(ours["r2"]) == "undefined (all targets are equal)"
            continue
        assert ours["r2"] == pytest.approx(sk.r2_score(truth, predicted), rel=1e-12, abs=1e-12)
        if np.ptp(predicted) == 0:
            assert str(ours["pearson"]) == str(ours["spearman"]) == "undefined (all predictions are equal)"
            continue
        assert ours["pearson"] == pytest.approx(stats.pearsonr(truth, predicted).statistic, abs=1e-12)
        assert ours["spearman"] == pytest.approx(stats.spearmanr(truth, predicted).statistic, abs=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 25), ties=st.booleans())
def test_a_metric_under_weights_is_that_of_the_sample_written_out(seed: int, n: int, ties: bool) -> None:
    truth, predicted = _cases(seed, n, ties)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=4).astype(float)
    ours = {name: f(weights) for name, f in TASK.weighted_metrics(truth.tolist(), {"value": predicted}, {}).items()}
    for b, sample in enumerate(np.repeat(np.arange(n), row.astype(int)) for row in weights):
        plain = TASK.metrics(truth[sample].tolist(), {"value": predicted[sample]})
        for name, value in plain.items():
            if isinstance(value, Undefined):
                assert np.isnan(ours[name][b]), name
            else:
                assert ours[name][b] == pytest.approx(value, rel=1e-9, abs=1e-9), name


def test_no_cases() -> None:
    assert {str(value) for value in TASK.metrics([], {"value": []}).values()} == {"undefined (no cases)"}


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_the_loss_is_taken_in_units_of_the_training_targets(loss: str) -> None:
    targets = {"a": 10.0, "b": 20.0, "c": 60.0}
    learned = Regression.learned_from(list(targets.values()))
    assert learned == {"target_mean": pytest.approx(30.0), "target_sd": pytest.approx(np.std([10, 20, 60]))}
    task = task_class("regression").of({"regression_loss": loss, **learned})
    criterion = task.criterion(targets, {slide: slide for slide in targets})
    for slide, target in targets.items():
        for logit in (-3.0, 0.0, 0.4, 2.5):
            error = logit - (target - learned["target_mean"]) / learned["target_sd"]
            expected = error**2 if loss == "squared" else (error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5)
            x = torch.tensor([logit], dtype=torch.float64, requires_grad=True)
            found = criterion.loss(slide, x)
            assert float(found.detach()) == pytest.approx(expected, abs=1e-12)
            torch.autograd.backward(found)
            assert x.grad is not None
    logits = torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    held_out = criterion.validation_loss([10.0, 60.0], logits)
    each = [float(criterion.loss(slide, row)) for slide, row in zip(("a", "c"), logits, strict=True)]
    assert held_out == pytest.approx(np.mean(each), abs=1e-12)


def test_the_readout_is_in_the_unit_of_the_table() -> None:
    task = Regression(mean=30.0, sd=5.0)
    readout = task.readout(torch.tensor([2.0]))
    assert readout == {"value": 40.0}
    assert task.sentence(readout, task.decide(readout, {})) == "predicted 40"
    assert task.headline(readout, task.decide(readout, {})) == ("40", 40.0)
    assert float(task.score().of(torch.tensor([2.0]))) == 40.0
    assert task.read_target({"target": "12.5"}) == 12.5
    with pytest.raises(InputError, match="explains its value, not 'tumour'"):
        task.score("tumour")


def test_what_is_no_number_is_refused() -> None:
    for target in ("high", SurvivalTime(1.0, event=True), float("nan"), True):
        with pytest.raises(InputError, match="finite number"):
            Regression.learned_from([target])
    with pytest.raises(InputError, match="all 3 training slides have the target 7"):
        Regression.learned_from([7.0, 7.0, 7.0])
    with pytest.raises(SpecError, match="unknown loss 'hubert'; did you mean 'huber'"):
        Regression(loss="hubert")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="column 'target' holds 'x'"):
        TASK.read_target({"target": "x"})
