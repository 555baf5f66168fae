"""The cohort type: what it keeps true, and what it says about itself."""

from __future__ import annotations

import numpy as np
import pytest
from lifelines import KaplanMeierFitter

from marble.cohorts import Case, Cohort
from marble.cohorts.cohort import median_follow_up
from marble.errors import TableError
from marble.targets import SurvivalTime

CASES = (Case("001", ("s1", "s2"), "a", "NA"), Case("1", ("s3",), "b", "05"))


def test_ids_stay_text_and_slides_find_their_case() -> None:
    cohort = Cohort("c", "classification", CASES, ("a", "b"))
    assert cohort.case_of("s2").case_id == "001"
    assert cohort.case("1").slides == ("s3",)
    assert cohort.slides() == ("s1", "s2", "s3")
    assert "001" in cohort
    assert "01" not in cohort
    assert {case.site for case in cohort.cases} == {"NA", "05"}
    assert hash(CASES[0]) == hash(Case("001", ("s1", "s2"), "a", "NA"))


def test_units_follow_the_unit_of_scoring() -> None:
    mixed = Case("p", ("s1", "s2"), "a", None, {"s1": "a", "s2": "b"})
    by_slide = Cohort("c", "classification", (mixed,), ("a", "b"), scored_by="slide")
    assert [(unit.unit_id, unit.target) for unit in by_slide.units()] == [("s1", "a"), ("s2", "b")]
    by_case = Cohort("c", "classification", CASES, ("a", "b"))
    assert [(unit.unit_id, unit.slides) for unit in by_case.units()] == [("001", ("s1", "s2")), ("1", ("s3",))]


@pytest.mark.parametrize(
    ("cases", "task", "message"),
    [
        ((), "classification", "no case"),
        ((Case("p", (), "a"),), "classification", "'p' has no slide"),
        ((Case("", ("s",), "a"),), "classification", "without an id"),
        ((Case("p", ("s",), "a"), Case("p", ("t",), "a")), "classification", "case 'p' appears twice"),
        ((Case("p", ("s",), "a"), Case("q", ("s",), "a")), "classification", "slide 's' appears twice"),
        ((Case("p", ("s",), "z"),), "classification", "class 'z'"),
        ((Case("p", ("s",), SurvivalTime(1, True)),), "classification", "needs a class"),
        ((Case("p", ("s",), "a"),), "survival", "needs a time and an event"),
        ((Case("p", ("s", "t"), "a", None, {"t": "b"}),), "classification", "different targets"),
        ((Case("p", ("s",), "a", None, {"u": "a"}),), "classification", "not its slide"),
    ],
)
def test_a_cohort_that_breaks_its_rules_is_refused(cases: tuple[Case, ...], task: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        Cohort("c", task, cases, ("a", "b"), source="t.csv")  # type: ignore[arg-type]


@pytest.mark.parametrize("time", [-1.0, float("nan"), float("inf")])
def test_a_time_is_a_finite_number_of_at_least_zero(time: float) -> None:
    with pytest.raises(TableError, match="not a number >= 0"):
        SurvivalTime(time, True)


def test_unknown_names_are_errors_that_name_them() -> None:
    cohort = Cohort("c", "classification", CASES, ("a", "b"))
    with pytest.raises(TableError, match="slide 'x'"):
        cohort.case_of("x")
    with pytest.raises(TableError, match="case 'x'"):
        cohort.case("x")


def test_fingerprint_ignores_order_and_sees_every_change() -> None:
    base = Cohort("c", "classification", CASES, ("a", "b"))
    assert base.fingerprint() == Cohort("d", "classification", CASES[::-1], ("a", "b"), source="x").fingerprint()
    others = [
        Cohort("c", "classification", CASES, ("b", "a")),
        Cohort("c", "classification", CASES, ("a", "b"), scored_by="slide"),
        Cohort("c", "classification", (CASES[0], Case("1", ("s3",), "a", "05")), ("a", "b")),
        Cohort("c", "classification", (CASES[0], Case("1", ("s4",), "b", "05")), ("a", "b")),
        Cohort("c", "classification", (CASES[0], Case("1", ("s3",), "b", "5")), ("a", "b")),
    ]
    assert len({base.fingerprint(), *(cohort.fingerprint() for cohort in others)}) == 6


def test_summary_prints_what_shows_a_flipped_event() -> None:
    cases = tuple(Case(str(i), (f"s{i}",), SurvivalTime(float(i + 1), i == 0)) for i in range(4))
    text = Cohort("c", "survival", cases).summary()
    assert "4 cases, 4 slides" in text
    assert "events: 1, censored: 3, event rate: 25.0 %" in text
    assert "median follow-up: 3 " in text
    assert "class b: 1" in Cohort("c", "classification", CASES, ("a", "b")).summary()


def test_median_follow_up_is_the_reverse_kaplan_meier_median() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        times = draw.integers(0, 12, size=draw.integers(2, 40)).astype(float)
        events = draw.random(times.size) < 0.6
        expected = KaplanMeierFitter().fit(times, ~events).median_survival_time_
        found = median_follow_up([SurvivalTime(time, bool(event)) for time, event in zip(times, events, strict=True)])
        assert (np.inf if found is None else found) == expected
