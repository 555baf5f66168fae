"""Survival scores against brute force, lifelines and scikit-survival, with ties and heavy censoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.errors import InputError, NonFiniteError
from marble.tasks.kaplan_meier import KaplanMeier
from marble.tasks.metric import Floats, Metric, Undefined
from marble.tasks.survival_metrics import (
    brier_scores,
    concordance_counts,
    harrell_c,
    integrated_brier,
    time_dependent_auc,
    uno_c,
)
from tests.tasks.cohorts_at_random import Cohort, cohorts


def pairs(cohort: Cohort) -> tuple[np.ndarray, np.ndarray]:
    """(n, n): who is comparable with whom by the definition, and what the pair scores."""
    t, e, r = cohort.time, cohort.event, cohort.risk
    comparable = e[:, None] & ((t[:, None] < t[None, :]) | ((t[:, None] == t[None, :]) & ~e[None, :]))
    score = (r[:, None] > r[None, :]) + 0.5 * (r[:, None] == r[None, :])
    return comparable, score


def number(metric: Metric) -> float:
    assert isinstance(metric, float), metric
    return metric


def test_harrell_equals_brute_force_lifelines_and_scikit_survival(
    record_property: Callable[[str, object], None],
) -> None:
    """scikit-survival calls risks tied when they differ by less than 1e-8; here its tolerance is set to 0, since the
    order of risks must not depend on their unit (a third of these cohorts has risks of the size 1e-9)."""
    lifelines = pytest.importorskip("lifelines.utils")
    sksurv = pytest.importorskip("sksurv.metrics")
    defined = undefined = 0
    for cohort in cohorts(1000, seed=0):
        ours = harrell_c(cohort.risk, cohort.time, cohort.event)
        comparable, score = pairs(cohort)
        if not comparable.any():
            undefined += 1
            assert str(ours) == "undefined (no comparable pair)"
            continue
        defined += 1
        assert number(ours) == pytest.approx(score[comparable].mean(), abs=1e-12)
        assert ours == pytest.approx(lifelines.concordance_index(cohort.time, -cohort.risk, cohort.event), abs=1e-12)
        theirs = sksurv.concordance_index_censored(cohort.event, cohort.time, cohort.risk, tied_tol=0)
        assert ours == pytest.approx(theirs[0], abs=1e-12)
    assert defined > 800
    assert undefined > 50
    record_property("cases", defined + undefined)


def test_counts_of_five_thousand_patients() -> None:
    rng = np.random.default_rng(1)
    cohort = Cohort(np.round(rng.normal(size=5000), 2), np.round(rng.exponential(100, 5000)), rng.random(5000) < 0.3)
    comparable, score = pairs(cohort)
    lower, tied, partners = concordance_counts(cohort.risk, cohort.time, cohort.event)
    assert partners.tolist() == comparable.sum(axis=1).tolist()
    assert lower.tolist() == (comparable & (score == 1)).sum(axis=1).tolist()
    assert tied.tolist() == (comparable & (score == 0.5)).sum(axis=1).tolist()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 6), st.booleans()), min_size=1, max_size=40), st.randoms())
def test_harrell_depends_on_order_alone(rows: list[tuple[int, int, bool]], random: Any) -> None:
    risk, time, event = (np.array(column) for column in zip(*rows, strict=True))
    found = harrell_c(risk, time, event)
    shuffled = random.sample(rows, len(rows))
    assert harrell_c(*(np.array(column) for column in zip(*shuffled, strict=True))) == found
    assert harrell_c(np.exp(risk / 3.0), time * 10, event) == found
    if isinstance(found, float):
        assert harrell_c(-risk, time, event) == pytest.approx(1 - found, abs=1e-15)
        assert harrell_c(np.zeros(len(risk)), time, event) == 0.5


def weight_is_infinite(cohort: Cohort) -> bool:
    """scikit-survival refuses a cohort if any event has G = 0, also one that no score needs (the last of all)."""
    staying = KaplanMeier.fit_censoring(cohort.time, cohort.event).at(cohort.time[cohort.event])
    return bool((staying == 0).any())


def test_uno_equals_scikit_survival() -> None:
    sksurv = pytest.importorskip("sksurv.metrics")
    compared = undefined = 0
    for cohort in cohorts(300, seed=2):
        ours = uno_c(cohort.risk, cohort.time, cohort.event)
        if isinstance(ours, Undefined):
            undefined += 1
            continue
        if weight_is_infinite(cohort):
            continue
        theirs = sksurv.concordance_index_ipcw(cohort.structured, cohort.structured, cohort.risk, tied_tol=0)[0]
        compared += 1
        assert ours == pytest.approx(theirs, abs=1e-12)
    assert compared > 150
    assert undefined > 10


def test_uno_with_training_censoring_and_tau_equals_scikit_survival() -> None:
    sksurv = pytest.importorskip("sksurv.metrics")
    compared = 0
    for train, test in zip(cohorts(150, seed=3, least=20), cohorts(150, seed=4, least=20), strict=True):
        tau = float(np.quantile(test.time, 0.7))
        if not train.event.any():
            continue
        censoring = KaplanMeier.fit_censoring(train.time, train.event)
        ours = uno_c(test.risk, test.time, test.event, tau=tau, censoring=censoring)
        try:
            theirs = sksurv.concordance_index_ipcw(train.structured, test.structured, test.risk, tau, tied_tol=0)[0]
        except ValueError:
            continue
        if isinstance(ours, float):
            compared += 1
            assert ours == pytest.approx(theirs, abs=1e-12)
    assert compared > 50


def test_uno_without_censoring_is_harrell() -> None:
    for cohort in cohorts(50, seed=5):
        everyone = np.ones(len(cohort.time), dtype=bool)
        ours, plain = uno_c(cohort.risk, cohort.time, everyone), harrell_c(cohort.risk, cohort.time, everyone)
        assert ours == pytest.approx(plain, abs=1e-12) if isinstance(plain, float) else ours == plain


def test_uno_weights_by_hand() -> None:
    """Times 1, 2+, 3, 4: the censored one leaves G = 2/3 (of three still there), so later events weigh 9/4."""
    time, event, risk = [1, 2, 3, 4], [1, 0, 1, 1], [4, 1, 2, 3]
    assert uno_c(risk, time, event) == pytest.approx((3 * 1 + 0 * 9 / 4) / (3 + 9 / 4), abs=1e-12)


def horizons_of(cohort: Cohort) -> Floats:
    """Times strictly inside the follow-up, as scikit-survival demands."""
    return np.unique(cohort.time)[:-1]


def test_time_dependent_auc_equals_scikit_survival_and_brute_force() -> None:
    sksurv = pytest.importorskip("sksurv.metrics")
    compared = 0
    for cohort in cohorts(200, seed=6, least=5):
        events = cohort.time[cohort.event]
        at = horizons_of(cohort)
        at = at[at >= events.min()] if events.size else at[:0]
        if not at.size:
            continue
        values, mean = time_dependent_auc(cohort.risk, cohort.time, cohort.event, at)
        if isinstance(mean, Undefined):
            continue
        staying = KaplanMeier.fit_censoring(cohort.time, cohort.event).at(cohort.time)
        for horizon, value in zip(at, values, strict=True):
            case, control = cohort.event & (cohort.time <= horizon), cohort.time > horizon
            weight = (case / np.where(case, staying, 1))[:, None] * control[None, :]
            assert number(value) == pytest.approx((weight * pairs(cohort)[1]).sum() / weight.sum(), abs=1e-12)
        if weight_is_infinite(cohort):
            continue
        theirs, their_mean = sksurv.cumulative_dynamic_auc(
            cohort.structured, cohort.structured, cohort.risk, at, tied_tol=0
        )
        compared += 1
        assert [number(value) for value in values] == pytest.approx(theirs.tolist(), abs=1e-10)
        assert mean == pytest.approx(their_mean, abs=1e-10)
    assert compared > 80


def test_time_dependent_auc_says_why_not() -> None:
    values, mean = time_dependent_auc([1, 2, 3], [2, 3, 4], [1, 1, 1], [1, 2.5, 9])
    assert [str(values[0]), str(values[2])] == [
        "undefined (no event by time 1)",
        "undefined (nobody is followed beyond time 9)",
    ]
    assert values[1] == 0.0
    assert isinstance(mean, Undefined)


def test_brier_equals_scikit_survival() -> None:
    sksurv = pytest.importorskip("sksurv.metrics")
    rng = np.random.default_rng(7)
    compared = 0
    for cohort in cohorts(200, seed=8, least=5):
        at = horizons_of(cohort)
        if len(at) < 2 or not cohort.event.any():
            continue
        curves = -np.sort(-rng.random((len(cohort.time), len(at))), axis=1)
        ours = integrated_brier(curves, cohort.time, cohort.event, at)
        if isinstance(ours, Undefined):
            continue
        compared += 1
        assert ours == pytest.approx(
            sksurv.integrated_brier_score(cohort.structured, cohort.structured, curves, at), abs=1e-12
        )
        values = brier_scores(curves, cohort.time, cohort.event, at)
        theirs = sksurv.brier_score(cohort.structured, cohort.structured, curves, at)[1]
        assert [number(value) for value in values] == pytest.approx(theirs.tolist(), abs=1e-12)
    assert compared > 80


def test_brier_without_censoring_is_a_mean_square() -> None:
    time, curves = np.array([1.0, 2.0, 3.0, 4.0]), np.array([[0.1, 0.0], [0.8, 0.2], [0.9, 0.4], [1.0, 0.7]])
    alive = time[:, None] > np.array([1.5, 3.5])
    expected = ((curves - alive) ** 2).mean(axis=0)
    assert brier_scores(curves, time, np.ones(4), [1.5, 3.5]) == pytest.approx(expected.tolist(), abs=1e-15)


def test_a_weight_that_would_be_infinite_is_undefined() -> None:
    """scikit-survival drops such a case from the Brier score in silence."""
    time, event = [1.0, 2.0, 2.0, 3.0], [1, 1, 1, 0]
    gone = KaplanMeier.fit_censoring([0.5, 1.0], [0, 0])  # in training nobody was followed beyond 1
    assert str(uno_c([4, 3, 2, 1], time, event, censoring=gone)).startswith("undefined (nobody stays under observation")
    short = KaplanMeier.fit_censoring([0.5, 1.0], [0, 1])
    assert "later than the follow-up" in str(uno_c([4, 3, 2, 1], time, event, censoring=short))
    assert isinstance(integrated_brier(np.full((4, 2), 0.5), time, event, [1.0, 2.5], censoring=gone), Undefined)
    assert isinstance(integrated_brier(np.full((4, 2), 0.5), time, event, [1.0, 3.0]), Undefined)


def test_bad_input_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="risk: 1 of 2"):
        harrell_c([1.0, np.nan], [1, 2], [1, 1])
    with pytest.raises(InputError, match="2 outcomes but risks"):
        uno_c([1.0], [1, 2], [1, 1])
    with pytest.raises(InputError, match="times must rise"):
        time_dependent_auc([1, 2], [1, 2], [1, 1], [2, 1])
    with pytest.raises(InputError, match="two times"):
        integrated_brier(np.zeros((2, 1)), [1, 2], [1, 1], [1])
    with pytest.raises(InputError, match=r"survival must be \(2, 2\)"):
        brier_scores(np.zeros((2, 3)), [1, 2], [1, 1], [1, 2])
    assert brier_scores(np.zeros((0, 1)), [], [], [1]) == [Undefined("no cases")]
    assert str(harrell_c([], [], [])) == "undefined (no comparable pair)"
