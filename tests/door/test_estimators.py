"""The estimators keep scikit-learn's contract, as far as bags allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score

from marble import MarbleClassifier, MarbleRegressor, MarbleSurvival
from marble.errors import InputError
from tests.door.making import planted_bag, two_classes

ESTIMATORS = (MarbleClassifier, MarbleSurvival, MarbleRegressor)
QUICK: dict[str, Any] = {"recipe": "common", "epochs": 12, "lr": 3e-3, "options": {"warmup": 0, "orders": 2}}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_parameters_are_kept_cloned_and_set(kind: type[Any]) -> None:
    estimator = kind(model="abmil", lr=1e-3, options={"hidden": 8})
    copy = clone(estimator)
    assert copy is not estimator
    assert copy.get_params() == estimator.get_params()
    assert copy.set_params(lr=2e-3).lr == 2e-3
    assert estimator.lr == 1e-3
    assert "MarbleC" in repr(MarbleClassifier(lr=1e-3))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_nothing_is_predicted_before_a_fit(kind: type[Any]) -> None:
    with pytest.raises(NotFittedError):
        kind().predict([planted_bag("s", 0.0)])


def test_a_classifier() -> None:
    bags, labels = two_classes()
    fitted = MarbleClassifier("abmil", **QUICK).fit(bags, labels)
    assert is_classifier(fitted)
    assert fitted.classes_.tolist() == ["benign", "tumour"]
    assert fitted.n_features_in_ == 6
    p = fitted.predict_proba(bags)
    assert p.shape == (24, 2)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    called = fitted.predict(bags)
    assert fitted.score(bags, labels) == accuracy_score(labels, called) == 1.0
    np.testing.assert_array_equal(called, fitted.classes_[p.argmax(axis=1)])


def test_classes_that_are_numbers_keep_their_order() -> None:
    bags, labels = two_classes()
    numbers = [10 if label == "tumour" else 9 for label in labels]  # as text, "10" comes before "9"
    fitted = MarbleClassifier("mean", **QUICK).fit(bags, numbers)
    assert fitted.classes_.tolist() == [9, 10]
    p = fitted.predict_proba(bags)
    np.testing.assert_array_equal(fitted.predict(bags), fitted.classes_[p.argmax(axis=1)])
    assert fitted.score(bags, numbers) == 1.0


@pytest.mark.parametrize("tumour", [1.0, np.float32(1), True, " tumour "])
def test_classes_come_back_as_they_were_given(tumour: Any) -> None:
    bags, labels = two_classes()
    benign = type(tumour)(0) if not isinstance(tumour, str) else "benign"
    y = np.array([tumour if label == "tumour" else benign for label in labels])
    fitted = MarbleClassifier("mean", **QUICK).fit(bags, y)
    assert fitted.predict(bags).dtype == y.dtype
    assert fitted.predict(bags).tolist() == y.tolist()
    assert fitted.score(bags, y) == 1.0


def test_survival() -> None:
    bags = [planted_bag(f"s{k:02d}", k / 4 - 3) for k in range(24)]
    y = [(float(30 - k), k % 3 > 0) for k in range(24)]
    assert MarbleSurvival("probe").fit(bags, y).score(bags, y) > 0.9


def test_a_grid_over_the_drop_rate_with_grouped_folds() -> None:
    bags, labels = two_classes(24)
    patients = [f"p{k % 12:02d}" for k in range(24)]
    small: dict[str, Any] = {"options": {"warmup": 0, "orders": 1, "d_state": 4, "headdim": 4}, "epochs": 1, "lr": 3e-3}
    grid = GridSearchCV(MarbleClassifier(**small), {"drop_rate": [0.0, 0.3]}, cv=GroupKFold(3), refit=False)
    grid.fit(bags, labels, groups=patients)
    assert [row["drop_rate"] for row in grid.cv_results_["params"]] == [0.0, 0.3]
    assert np.isfinite(grid.cv_results_["mean_test_score"]).all()


def test_cross_validation_by_patient() -> None:
    bags, labels = two_classes(24)
    patients = [f"p{k % 12:02d}" for k in range(24)]
    scores = cross_val_score(MarbleClassifier("probe"), bags, labels, groups=patients, cv=GroupKFold(3))
    assert len(scores) == 3
    assert min(scores) >= 0.8  # 8 bags each, of patients that were not trained on


@pytest.mark.parametrize(
    ("choices", "y", "said"),
    [
        ({}, np.zeros((4, 1)), r"y is one target for every bag, got an array \(4, 1\)\. Give one column"),
        ({}, np.eye(2)[[0, 1, 0, 1]], r"y is one target for every bag, got an array \(4, 2\)"),
        ({}, [None, "a", "b", "a"], r"the target is missing \(None\)"),
        ({"options": {"seed": 1}}, ["a", "b", "a", "b"], "`options` holds 'seed', which is given beside it already"),
        ({"epochs": 2, "options": {"epochs": 3}}, ["a", "b", "a", "b"], "`options` holds 'epochs'"),
        ({"options": ["hidden"]}, ["a", "b", "a", "b"], "options are a dictionary, got list"),
    ],
)
def test_what_notebooks_give_by_mistake_is_one_line(choices: dict[str, Any], y: Any, said: str) -> None:
    bags = [planted_bag(f"s{k}", 0.0) for k in range(4)]
    with pytest.raises(InputError, match=said):
        MarbleClassifier("mean", **choices).fit(bags, y)


@pytest.mark.parametrize("given", [None, "bags/", {"s00": [[0.0]]}, 3])
def test_what_is_no_list_of_bags_is_refused(given: Any) -> None:
    bags, labels = two_classes()
    fitted = MarbleClassifier("probe").fit(bags, labels)
    for ask in (lambda: MarbleClassifier("probe").fit(given, labels), lambda: fitted.predict(given)):
        with pytest.raises(InputError, match=r"X is a list of bags or of arrays \(N, D\), got"):
            ask()


def test_a_table_of_follow_ups_is_refused_by_fit_and_score() -> None:
    bags, _ = two_classes()
    pairs = [(float(k + 1), k % 2) for k in range(24)]
    table = pandas.DataFrame(pairs, columns=["time", "event"])
    fitted = MarbleSurvival("probe").fit(bags, pairs)
    for ask in (lambda: MarbleSurvival("probe").fit(bags, table), lambda: fitted.score(bags, table)):
        with pytest.raises(InputError, match=r"\(time, event\)"):
            ask()


def test_no_bags_have_no_probabilities() -> None:
    bags, labels = two_classes()
    assert MarbleClassifier("probe").fit(bags, labels).predict_proba([]).shape == (0, 2)
