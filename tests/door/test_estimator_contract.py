"""What scikit-learn's own checks ask of an estimator, asked of the three over bags, which those checks cannot make."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import sklearn
from lifelines.utils import concordance_index
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold

from marble import MarbleClassifier, MarbleRegressor, MarbleSurvival
from marble.bags.bag import Bag
from marble.errors import MarbleError
from tests.door.making import planted_bag

COUNT = 18
AMOUNTS = [k / 3 - 3 for k in range(COUNT)]
KINDS: dict[type[Any], list[Any]] = {
    MarbleClassifier: ["high" if amount > 0 else "low" for amount in AMOUNTS],
    MarbleSurvival: [(float(30 - k), k % 3 > 0) for k in range(COUNT)],
    MarbleRegressor: [20 + 5 * amount for amount in AMOUNTS],
}


@pytest.fixture(scope="module")
def bags() -> list[Bag]:
    return [planted_bag(f"s{k:02d}", amount) for k, amount in enumerate(AMOUNTS)]


@pytest.fixture(scope="module", params=list(KINDS), ids=lambda kind: kind.__name__)
def fitted(request: pytest.FixtureRequest, bags: list[Bag]) -> tuple[Any, list[Any]]:
    targets = KINDS[request.param]
    return request.param("probe").fit(bags, targets), targets


def _said(estimator: Any, bags: list[Bag]) -> NDArray[Any]:
    ask = getattr(estimator, "predict_proba", estimator.predict)
    return np.asarray(ask(bags))


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_constructor_only_keeps_what_it_is_given(kind: type[Any]) -> None:
    names = list(inspect.signature(kind.__init__).parameters)[1:]
    marks = {name: object() for name in names}
    estimator = kind(**marks)
    assert all(getattr(estimator, name) is mark for name, mark in marks.items())
    assert set(estimator.get_params()) == set(names)
    assert not [name for name in vars(estimator) if name.endswith("_")]  # nothing is learned before a fit
    with pytest.raises(ValueError, match="Invalid parameter"):
        estimator.set_params(droprate=0.1)


def test_a_fit_returns_itself_and_leaves_the_parameters_alone(bags: list[Bag]) -> None:
    estimator = MarbleRegressor("probe", options={"seed_of_nothing": 1})
    before = dict(estimator.get_params())
    with pytest.raises(MarbleError, match="seed_of_nothing"):  # an option is checked by the fit, not by the constructor
        estimator.fit(bags, KINDS[MarbleRegressor])
    estimator.set_params(options=None)
    assert estimator.fit(bags, KINDS[MarbleRegressor]) is estimator
    assert estimator.get_params() == before | {"options": None}


def test_what_is_said_does_not_depend_on_the_company_or_the_order(
    fitted: tuple[Any, list[Any]], bags: list[Bag]
) -> None:
    estimator, _ = fitted
    together = _said(estimator, bags)
    np.testing.assert_array_equal(_said(estimator, bags[::-1]), together[::-1])
    np.testing.assert_array_equal(np.concatenate([_said(estimator, [bag]) for bag in bags]), together)


def test_a_fit_does_not_depend_on_the_order_of_the_samples(fitted: tuple[Any, list[Any]], bags: list[Bag]) -> None:
    estimator, targets = fitted
    order = np.random.default_rng(0).permutation(COUNT)
    again = clone(estimator).fit([bags[k] for k in order], [targets[k] for k in order])
    np.testing.assert_array_equal(_said(again, bags), _said(estimator, bags))


def test_a_second_fit_forgets_the_first(fitted: tuple[Any, list[Any]], bags: list[Bag]) -> None:
    estimator, targets = fitted
    other = clone(estimator).fit(bags[:12], targets[:12]).fit(bags, targets)
    np.testing.assert_array_equal(_said(other, bags), _said(estimator, bags))


def test_a_pickled_estimator_says_the_same(fitted: tuple[Any, list[Any]], bags: list[Bag]) -> None:
    estimator, _ = fitted
    np.testing.assert_array_equal(_said(pickle.loads(pickle.dumps(estimator)), bags), _said(estimator, bags))


def test_scores_are_those_of_their_oracles(fitted: tuple[Any, list[Any]], bags: list[Bag]) -> None:
    estimator, targets = fitted
    found = estimator.score(bags, targets)
    if isinstance(estimator, MarbleRegressor):
        assert is_regressor(estimator)
        assert found == pytest.approx(r2_score(targets, estimator.predict(bags)))
    elif isinstance(estimator, MarbleSurvival):
        times, events = map(np.array, zip(*targets, strict=True))
        assert found == pytest.approx(concordance_index(times, -estimator.predict(bags), events))
    else:
        assert is_classifier(estimator)
        assert found == np.mean(estimator.predict(bags) == np.array(targets))


def test_what_does_not_fit_is_refused_in_one_line(fitted: tuple[Any, list[Any]], bags: list[Bag]) -> None:
    estimator, targets = fitted
    fresh = clone(estimator)
    with pytest.raises(MarbleError, match=f"{COUNT - 1} targets for {COUNT} bags"):
        fresh.fit(bags, targets[:-1])
    with pytest.raises(MarbleError, match="no bags"):
        fresh.fit([], [])
    with pytest.raises(MarbleError):
        estimator.predict([planted_bag("wide", 0.0, dim=9)])
    with pytest.raises(MarbleError):
        estimator.predict([np.full((5, 6), np.nan, np.float32)])


def test_the_best_of_a_grid_is_fitted_again_on_all(bags: list[Bag]) -> None:
    patients = [f"p{k // 2:02d}" for k in range(COUNT)]
    grid = GridSearchCV(MarbleRegressor("probe"), {"validation": [0.2, 0.4]}, cv=GroupKFold(3))
    grid.fit(bags, KINDS[MarbleRegressor], groups=patients)
    assert grid.best_params_["validation"] in (0.2, 0.4)
    assert grid.best_estimator_.validation == grid.best_params_["validation"]
    assert grid.predict(bags).shape == (COUNT,)


def test_patients_reach_the_fit_where_scikit_learn_passes_them_on(bags: list[Bag]) -> None:
    """Without routing only the folds know the patients; with it the validation inside every fit does too."""
    patients = [f"p{k // 2:02d}" for k in range(COUNT)]
    with sklearn.config_context(enable_metadata_routing=True):
        asked = MarbleRegressor("probe").set_fit_request(groups=True)
        grid = GridSearchCV(asked, {"validation": [0.3]}, cv=GroupKFold(3))
        grid.fit(bags, [float(k // 2) for k in range(COUNT)], groups=patients)  # one target per patient
    parts = grid.best_estimator_.run_.record["parts"]
    cases = {name: {entry["case_id"] for entry in slides.values()} for name, slides in parts.items() if slides}
    assert cases["train"] | cases["val"] == set(patients)
    assert not cases["train"] & cases["val"]
