"""Kaplan-Meier, Greenwood and log-rank against lifelines and scikit-survival."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from marble.errors import InputError, NonFiniteError
from marble.tasks.kaplan_meier import KaplanMeier, LogRank, logrank
from marble.tasks.metric import Undefined
from tests.tasks.cohorts_at_random import cohorts


def test_curve_and_interval_equal_lifelines() -> None:
    lifelines = pytest.importorskip("lifelines")
    for cohort in cohorts(60, seed=0):
        ours = KaplanMeier.fit(cohort.time, cohort.event)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            theirs = lifelines.KaplanMeierFitter().fit(cohort.time, cohort.event)
            bounds = theirs.confidence_interval_.loc[ours.times].to_numpy()
        curve = theirs.survival_function_.loc[ours.times].to_numpy()[:, 0]
        assert ours.survival == pytest.approx(curve, abs=1e-12)
        inside = (ours.survival > 0) & (ours.survival < 1)
        lower, upper = ours.interval()
        assert lower[inside] == pytest.approx(bounds[inside, 0], abs=1e-9)
        assert upper[inside] == pytest.approx(bounds[inside, 1], abs=1e-9)
        assert (lower[ours.survival == 1] == 1).all()
        assert np.isnan(lower[ours.survival == 0]).all()
        median = ours.median()
        if not np.isclose(ours.survival, 0.5, atol=1e-9).any():  # there lifelines depends on rounding
            expected = theirs.median_survival_time_
            assert isinstance(median, Undefined) if np.isinf(expected) else median == expected


def test_censoring_curve_equals_scikit_survival() -> None:
    nonparametric = pytest.importorskip("sksurv.nonparametric")
    for cohort in cohorts(60, seed=1):
        if cohort.event.all() or not cohort.event.any():
            continue
        ours = KaplanMeier.fit_censoring(cohort.time, cohort.event)
        times, theirs = nonparametric.kaplan_meier_estimator(cohort.event, cohort.time, reverse=True)
        assert ours.times.tolist() == times.tolist()
        assert ours.survival == pytest.approx(theirs, abs=1e-12)


def test_a_worked_example() -> None:
    """Times 1, 2, 2+, 3, 4+: 4/5, then 3/4 of it, then 1/2 of that."""
    curve = KaplanMeier.fit([1, 2, 2, 3, 4], [1, 1, 0, 1, 0])
    assert curve.survival == pytest.approx([0.8, 0.6, 0.3, 0.3], abs=1e-15)
    assert curve.log_variance[1] == pytest.approx(1 / (5 * 4) + 1 / (4 * 3), abs=1e-15)
    assert curve.at([0.5, 1.0, 1.9, 2.5, 100.0]) == pytest.approx([1.0, 0.8, 0.8, 0.6, 0.3], abs=1e-15)
    assert curve.known_at([4.0, 4.1]).tolist() == [True, False]
    assert KaplanMeier.fit([1, 2], [1, 1]).known_at([9.0]).tolist() == [True]
    # The event at 2 comes before the censoring at 2: three are at risk of being censored, not four.
    assert KaplanMeier.fit_censoring([1, 2, 2, 3, 4], [1, 1, 0, 1, 0]).survival == pytest.approx([1, 2 / 3, 2 / 3, 0])


def test_no_event_is_a_flat_curve() -> None:
    curve = KaplanMeier.fit([1.0, 2.0], [0, 0])
    assert curve.survival.tolist() == [1.0, 1.0]
    assert isinstance(curve.median(), Undefined)


def test_the_median_is_reached_at_exactly_one_half() -> None:
    for n in range(2, 60, 2):
        assert KaplanMeier.fit(np.arange(n), np.ones(n)).median() == n / 2 - 1


def test_logrank_equals_lifelines() -> None:
    statistics = pytest.importorskip("lifelines.statistics")
    rng = np.random.default_rng(2)
    compared = 0
    for cohort in cohorts(100, seed=3, least=6, most=25):
        group = rng.integers(0, int(rng.integers(2, 5)), len(cohort.time))
        ours = logrank(cohort.time, cohort.event, group)
        if isinstance(ours, Undefined) or ours.degrees != len(np.unique(group)) - 1:
            continue
        theirs = statistics.multivariate_logrank_test(cohort.time, group, cohort.event)
        assert ours.statistic == pytest.approx(theirs.test_statistic, abs=1e-8, rel=1e-8)
        assert ours.p_value == pytest.approx(theirs.p_value, abs=1e-9)
        compared += 1
    assert compared > 50


def test_a_group_nobody_of_which_is_at_risk_has_no_degree_of_freedom() -> None:
    time, event, group = [1, 5, 6, 7, 8, 9], [0, 1, 1, 1, 1, 0], ["gone", "a", "b", "a", "b", "a"]
    with_it, without = logrank(time, event, group), logrank(time[1:], event[1:], group[1:])
    assert isinstance(with_it, LogRank)
    assert with_it == without
    assert with_it.degrees == 1


@pytest.mark.parametrize(
    ("time", "event", "group", "reason"),
    [
        ([], [], [], "no event"),
        ([1, 2, 3], [0, 0, 0], [0, 1, 1], "no event"),
        ([1, 2, 3], [1, 1, 1], [0, 0, 0], "one group only"),
        ([1, 2, 3], [0, 1, 1], [0, 1, 1], "only one group has patients at risk at an event"),
        ([1, 1], [1, 1], [0, 1], "no event time tells all groups apart"),
    ],
)
def test_logrank_says_why_not(time: list[int], event: list[int], group: list[int], reason: str) -> None:
    assert logrank(time, event, group) == Undefined(reason)


def test_bad_follow_up_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="time: 1 of 2"):
        KaplanMeier.fit([1.0, np.nan], [1, 0])
    with pytest.raises(InputError, match="negative"):
        KaplanMeier.fit([1.0, -2.0], [1, 0])
    with pytest.raises(InputError, match="one length"):
        KaplanMeier.fit([1.0], [1, 0])
    with pytest.raises(InputError, match="True or False"):
        KaplanMeier.fit([1.0, 2.0], [1, 2])
    with pytest.raises(InputError, match="groups of shape"):
        logrank([1.0, 2.0], [1, 0], ["a"])
