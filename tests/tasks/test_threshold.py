"""The threshold against a search over every cut, and what it does where validation is separable."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from marble.errors import InputError, NonFiniteError, SpecError
from marble.tasks.base import Answered
from marble.tasks.classification import Classification
from marble.tasks.metric import Undefined
from marble.tasks.threshold import choose_threshold, log_odds


def _by_search(truth: np.ndarray, scores: np.ndarray) -> float | None:
    """Every cut between neighbours, judged by Fractions' worth of whole numbers."""
    values = sorted(set(scores.tolist()))
    cuts = []
    for low, high in itertools.pairwise(values):
        middle = low + (high - low) / 2
        found = sum(1 for t, s in zip(truth, scores, strict=True) if t and s >= middle)
        spared = sum(1 for t, s in zip(truth, scores, strict=True) if not t and s < middle)
        worth = found * int((~truth).sum()) + spared * int(truth.sum())  # J + 1, times both counts
        cuts.append((worth, high - low, -abs(middle), -middle))
    chance = int(truth.sum()) * int((~truth).sum())
    best = max(cuts, default=None)
    return None if best is None or best[0] <= chance else -best[3]


def test_it_equals_a_search_over_all_cuts() -> None:
    rng = np.random.default_rng(1)
    undefined = 0
    for _ in range(400):
        n = int(rng.integers(2, 30))
        truth, scores = rng.random(n) < 0.4, rng.integers(-8, 8, n) / 4.0
        ours = choose_threshold(truth, scores)
        expected = None if truth.all() or not truth.any() else _by_search(truth, scores)
        if expected is None:
            assert isinstance(ours, Undefined)
            undefined += 1
        else:
            assert ours == expected
    assert 0 < undefined < 300


def test_of_separable_cases_it_is_the_middle_of_the_gap() -> None:
    truth = [False, False, True, True]
    assert choose_threshold(truth, [-7.0, -2.0, 4.0, 6.0]) == 1.0
    # Probabilities crowd at 1: the middle in log odds is far from all of them, the highest score would not be.
    p = np.array([0.9990, 0.9992, 0.99999, 0.999999])
    odds = log_odds(p, 1 - p)
    chosen = choose_threshold(truth, odds)
    assert chosen == pytest.approx((odds[1] + odds[2]) / 2)


def test_log_odds_are_exact_where_one_probability_is_rounded_to_one() -> None:
    for logit in (-700.0, -40.0, 0.0, 3.0, 40.0, 700.0):
        p, q = 1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(logit))
        assert log_odds([p], [q])[0] == pytest.approx(logit, abs=1e-9)
    assert np.isfinite(log_odds([0.0, 1.0], [1.0, 0.0])).all()


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(NonFiniteError):
        choose_threshold([True, False], [0.1, np.nan])
    with pytest.raises(InputError, match="one length"):
        choose_threshold([True, False], [0.1])
    with pytest.raises(InputError, match="True"):
        choose_threshold([2, 0], [0.1, 0.2])
    assert str(choose_threshold([True, True], [0.1, 0.2])) == "undefined (no negative case)"
    assert str(choose_threshold([True, False], [0.1, 0.1])) == "undefined (all scores are equal)"
    assert str(choose_threshold([True, False], [0.1, 0.2])) == "undefined (no threshold does better than chance)"


@pytest.mark.parametrize("positive", ["benign", "tumour"])
def test_the_positive_class_can_be_named(positive: str) -> None:
    task = Classification(("benign", "tumour"), decision="threshold", positive=positive)
    logits = np.array([[0.0, -1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 1.0]])
    targets = ["benign", "benign", "tumour", "tumour"]
    found = task.calibrate({"val": Answered(targets, logits)})
    readouts = {name: [] for name in task.columns}  # type: dict[str, list[float]]
    import torch

    for row in logits:
        for name, value in task.readout(torch.from_numpy(row), found).items():
            readouts[name].append(value)
    called = [task.classes[k] for k in task.called(readouts, found)]
    metrics = task.metrics(targets, readouts, found)
    right = [c == t for c, t in zip(called, targets, strict=True)]
    is_positive = [t == positive for t in targets]
    assert metrics["sensitivity"] == sum(r for r, p in zip(right, is_positive, strict=True) if p) / 2
    assert metrics["specificity"] == sum(r for r, p in zip(right, is_positive, strict=True) if not p) / 2
    assert found["sensitivity"] == metrics["sensitivity"]
    assert found["specificity"] == metrics["specificity"]
    decision = task.decide({name: values[0] for name, values in readouts.items()}, found)
    assert decision.label == called[0]
    assert decision.rule.startswith(f"{positive} from p = ")


def test_a_threshold_that_cannot_be_chosen_falls_back_to_the_most_probable_class() -> None:
    task = Classification(("a", "b"), decision="threshold")
    found = task.calibrate({"val": Answered(["a", "b"], np.array([[0.0, 1.0], [0.0, -1.0]]))})
    assert found["decision"] == "argmax"
    assert found["threshold_reason"] == "no threshold does better than chance"
    assert task.decide({"p_a": 0.6, "p_b": 0.4}, found).label == "a"


def test_choices_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SpecError, match='decision = "threshold" needs two classes, these are 3'):
        Classification(("a", "b", "c"), decision="threshold")
    with pytest.raises(SpecError, match="positive is for two classes"):
        Classification(("a", "b", "c"), positive="a")
    with pytest.raises(SpecError, match=r"unknown class for positive 'tumor'; did you mean 'tumour'\?"):
        Classification(("benign", "tumour"), positive="tumor")
