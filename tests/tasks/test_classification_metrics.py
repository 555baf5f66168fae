"""Class scores against scikit-learn, with ties and missing classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import config_context
from sklearn import metrics as sklearn_metrics

from marble.errors import InputError, NonFiniteError
from marble.tasks.classification import Classification
from marble.tasks.metric import Undefined

CASES = 250


def random_case(rng: np.random.Generator) -> tuple[int, np.ndarray, np.ndarray]:
    """K, truth (n,), probabilities (n, K): often with tied scores, often without some class."""
    k, n = int(rng.integers(2, 7)), int(rng.integers(1, 60))
    truth = rng.integers(0, int(rng.integers(1, k + 1)), n) if rng.random() < 0.3 else rng.integers(0, k, n)
    p = rng.dirichlet(np.ones(k), n)
    if rng.random() < 0.5:
        counts = rng.multinomial(4, np.ones(k) / k, n)  # quarters: many ties, exact as floats
        p = counts / 4
    return k, truth, p


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_scikit_learn(seed: int, record_property: Callable[[str, object], None]) -> None:
    record_property("cases", CASES)
    with config_context(assume_finite=True, skip_parameter_validation=True):
        compare_with_scikit_learn(np.random.default_rng(seed))


def compare_with_scikit_learn(rng: np.random.Generator) -> None:
    defined = undefined = 0
    for _ in range(CASES):
        k, truth, p = random_case(rng)
        task = Classification(tuple(f"c{i}" for i in range(k)))
        ours = task.metrics([f"c{i}" for i in truth], {f"p_c{i}": p[:, i] for i in range(k)})
        called = p.argmax(axis=1)
        assert ours["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(truth, called), abs=1e-12)

        with warnings.catch_warnings(), np.errstate(invalid="ignore"):
            warnings.simplefilter("ignore")
            kappa = sklearn_metrics.cohen_kappa_score(truth, called, weights="quadratic", labels=range(k))
        if len(set(truth) | set(called)) == 1:
            assert isinstance(ours["kappa"], Undefined)
        else:
            assert ours["kappa"] == pytest.approx(kappa, abs=1e-12)

        if len(set(truth)) < k:
            undefined += 1
            assert all(isinstance(ours[name], Undefined) for name in ("auc", "balanced_accuracy", "f1"))
            continue
        defined += 1
        auc = (
            sklearn_metrics.roc_auc_score(truth, p[:, 1])
            if k == 2
            else sklearn_metrics.roc_auc_score(truth, p, multi_class="ovr", average="macro", labels=range(k))
        )
        assert ours["auc"] == pytest.approx(auc, abs=1e-12)
        assert ours["balanced_accuracy"] == pytest.approx(
            sklearn_metrics.balanced_accuracy_score(truth, called), abs=1e-12
        )
        f1 = sklearn_metrics.f1_score(truth, called, average="macro", labels=range(k), zero_division=np.nan)
        assert ours["f1"] == pytest.approx(f1, abs=1e-12)
    assert defined > CASES / 4
    assert undefined > CASES / 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
def test_auc_is_the_share_of_ordered_pairs(cases: list[tuple[bool, int]]) -> None:
    positives = [score for positive, score in cases if positive]
    negatives = [score for positive, score in cases if not positive]
    p = np.array([score / 8 for _, score in cases])
    ours = Classification(("no", "yes")).metrics(["yes" if c[0] else "no" for c in cases], {"p_no": 1 - p, "p_yes": p})
    if not positives or not negatives:
        assert isinstance(ours["auc"], Undefined)
        return
    wins = [(a > b) + 0.5 * (a == b) for a, b in product(positives, negatives)]
    assert ours["auc"] == pytest.approx(np.mean(wins), abs=1e-12)


def test_a_missing_class_is_named_and_never_a_number() -> None:
    task = Classification(("a", "b", "c"))
    p = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1]])
    ours = task.metrics(["a", "b", "a"], {f"p_{name}": p[:, k] for k, name in enumerate("abc")})
    assert str(ours["auc"]) == "undefined (no case of class 'c')"
    assert ours["accuracy"] == 1.0
    assert ours["kappa"] == 1.0


def test_no_cases() -> None:
    ours = Classification(("a", "b")).metrics([], {"p_a": np.zeros(0), "p_b": np.zeros(0)})
    assert {str(value) for value in ours.values()} == {"undefined (no cases)"}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(NonFiniteError, match=r"p_b: 1 of 3 scores .* index 1"):
        Classification(("a", "b")).metrics(["a", "b", "a"], {"p_a": [0.1, 0.5, 0.2], "p_b": [0.9, bad, 0.8]})


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InputError, match=r"no column 'p_b'.*p_a, p_c"):
        Classification(("a", "b")).metrics(["a"], {"p_a": [0.1], "p_c": [0.9]})


def test_targets_and_predictions_must_match() -> None:
    with pytest.raises(InputError, match="2 targets but 1 predictions"):
        Classification(("a", "b")).metrics(["a", "b"], {"p_a": [0.1], "p_b": [0.9]})
    with pytest.raises(InputError, match="unknown class 'z'"):
        Classification(("a", "b")).metrics(["z"], {"p_a": [0.1], "p_b": [0.9]})
