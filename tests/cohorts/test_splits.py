"""Splits made from a seed: disjoint, covering, stratified, the same again whatever the order of the rows."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.cohorts import Case, Cohort, Split, holdout, kfold
from marble.cohorts.splits import with_validation
from marble.errors import SpecError, SplitError
from marble.targets import SurvivalTime

quick = settings(max_examples=60, deadline=None)


@st.composite
def classified(draw: st.DrawFn, least: int = 5, sites: int = 0) -> Cohort:
    """A cohort of 2 to 4 classes, each with at least `least` patients."""
    counts = draw(st.lists(st.integers(least, 40), min_size=2, max_size=4))
    classes = "abcd"[: len(counts)]
    labels = [name for name, count in zip(classes, counts, strict=True) for _ in range(count)]
    cases = tuple(
        Case(f"p{i:03}", (f"s{i}",), label, str(draw(st.integers(0, sites - 1))) if sites else None)
        for i, label in enumerate(labels)
    )
    return Cohort("made", "classification", cases, tuple(classes))


@st.composite
def surviving(draw: st.DrawFn) -> Cohort:
    events, censored = draw(st.integers(6, 40)), draw(st.integers(6, 60))
    cases = tuple(
        Case(f"p{i:03}", (f"s{i}",), SurvivalTime(float(draw(st.integers(0, 50))), i < events))
        for i in range(events + censored)
    )
    return Cohort("made", "survival", cases)


def stratum(case: Case) -> str:
    return str(case.target.event) if isinstance(case.target, SurvivalTime) else str(case.target)


def check_stratified(cohort: Cohort, parts: list[tuple[str, ...]], fractions: list[float]) -> None:
    totals = Counter(stratum(case) for case in cohort.cases)
    for patients, fraction in zip(parts, fractions, strict=True):
        counts = Counter(stratum(cohort.case(patient)) for patient in patients)
        for name, total in totals.items():
            assert abs(counts[name] - total * fraction) < 1


@quick
@given(st.one_of(classified(), surviving()), st.integers(0, 2**32), st.sampled_from([(0.8, 0.1, 0.1), (0.6, 0.2, 0.2)]))
def test_holdout(cohort: Cohort, seed: int, fractions: tuple[float, float, float]) -> None:
    splits = holdout(cohort, fractions, repeats=2, seed=seed)
    assert [(split.repeat, split.seed, split.scheme) for split in splits] == [
        (0, seed, "holdout"),
        (1, seed, "holdout"),
    ]
    for split in splits:
        split.check(cohort)
        check_stratified(cohort, [split.train, split.val, split.test], list(fractions))
        for patients, fraction in zip((split.train, split.val, split.test), fractions, strict=True):
            assert abs(len(patients) - fraction * len(cohort.cases)) < 2


@quick
@given(st.one_of(classified(), surviving()), st.integers(0, 99), st.integers(3, 6))
def test_kfold(cohort: Cohort, seed: int, folds: int) -> None:
    splits = kfold(cohort, folds, repeats=2, seed=seed)
    assert [split.repeat for split in splits] == list(range(2 * folds))
    everyone = sorted(case.case_id for case in cohort.cases)
    for repeat in (splits[:folds], splits[folds:]):
        assert sorted(patient for split in repeat for patient in split.test) == everyone
        assert sorted(patient for split in repeat for patient in split.val) == everyone
        for split in repeat:
            split.check(cohort)
            check_stratified(cohort, [split.test, split.val], [1 / folds] * 2)


@quick
@given(st.one_of(classified(), surviving()), st.randoms(use_true_random=False), st.integers(0, 99))
def test_neither_the_order_of_rows_nor_other_splits_matter(cohort: Cohort, random: object, seed: int) -> None:
    cases = list(cohort.cases)
    random.shuffle(cases)  # type: ignore[attr-defined]
    shuffled = Cohort("made", cohort.task, tuple(cases), cohort.classes)
    assert holdout(cohort, repeats=3, seed=seed) == holdout(shuffled, repeats=3, seed=seed)
    assert holdout(cohort, repeats=3, seed=seed)[:1] == holdout(cohort, repeats=1, seed=seed)
    assert kfold(cohort, 3, seed=seed) == kfold(shuffled, 3, seed=seed)


@settings(max_examples=200, deadline=None)
@given(classified(sites=8), st.integers(0, 99), st.booleans())
def test_by_site_no_site_is_in_two_parts(cohort: Cohort, seed: int, folded: bool) -> None:
    if len({case.site for case in cohort.cases}) < 3:
        return
    splits = kfold(cohort, 3, seed=seed, by_site=True) if folded else holdout(cohort, seed=seed, by_site=True)
    for split in splits:
        split.check(cohort)
        sites = [{cohort.case(patient).site for patient in patients} for _, patients in split.parts()]
        assert sum(map(len, sites)) == len(set().union(*sites))


def test_by_site_keeps_close_to_the_shares_where_sites_are_small() -> None:
    names = ["NA", "05", "3C", *(f"{i:02}" for i in range(10, 67))]
    cases = tuple(Case(f"p{i}", (f"s{i}",), "ab"[i % 3 == 0], names[i * 7919 % len(names)]) for i in range(900))
    cohort = Cohort("made", "classification", cases, ("a", "b"))
    splits = holdout(cohort, seed=1, by_site=True)
    for split in splits:
        for (_, patients), share in zip(split.parts(), (0.8, 0.1, 0.1), strict=True):
            assert len(patients) / 900 == pytest.approx(share, abs=0.03)
            positive = sum(cohort.case(patient).target == "b" for patient in patients)
            assert positive / len(patients) == pytest.approx(1 / 3, abs=0.1)
    assert len({split.test for split in splits}) == 5


def test_many_small_classes_do_not_spoil_the_sizes_of_the_parts() -> None:
    cases = tuple(Case(f"p{i}", (f"s{i}",), "abcdefghij"[i % 10]) for i in range(20))
    for split in holdout(Cohort("made", "classification", cases, tuple("abcdefghij"))):
        assert [len(patients) for _, patients in split.parts()] == [16, 2, 2]


def test_repeats_and_seeds_differ_and_are_pinned() -> None:
    cases = tuple(Case(f"p{i}", (f"s{i}",), "ab"[i % 2]) for i in range(20))
    cohort = Cohort("made", "classification", cases, ("a", "b"))
    splits = holdout(cohort, repeats=5, seed=0) + holdout(cohort, repeats=5, seed=1)
    assert len({split.test for split in splits}) == 10
    assert len({split.fingerprint() for split in splits}) == 10
    # A change of these names would silently change every published split.
    assert splits[0].test == ("p13", "p14")
    assert kfold(cohort, 5)[0].test == ("p10", "p15", "p4", "p5")


def test_survival_strata_follow_time_too() -> None:
    cases = tuple(Case(f"p{i}", (f"s{i}",), SurvivalTime(float(i), i % 3 == 0)) for i in range(300))
    cohort = Cohort("made", "survival", cases)
    for split in holdout(cohort, seed=3):
        early = sum(cohort.case(patient).target.time < 100 for patient in split.test)  # type: ignore[union-attr]
        assert early == pytest.approx(10, abs=2)  # at random the standard deviation would be 2.5


def test_every_draw_is_equally_likely_for_every_patient() -> None:
    cases = tuple(Case(f"p{i}", (f"s{i}",), "ab"[i % 2]) for i in range(40))
    cohort = Cohort("made", "classification", cases, ("a", "b"))
    counts = Counter(patient for split in holdout(cohort, repeats=1000) for patient in split.test)
    expected, spread = 100, math.sqrt(1000 * 0.1 * 0.9)
    assert all(abs(counts[case.case_id] - expected) < 4.5 * spread for case in cases)


def test_small_and_impossible_requests_are_refused() -> None:
    cases = tuple(Case(f"p{i}", (f"s{i}",), "ab"[i % 2]) for i in range(4))
    cohort = Cohort("tiny", "classification", cases, ("a", "b"))
    with pytest.raises(SplitError, match="too few"):
        holdout(cohort)
    with pytest.raises(SplitError, match="too few"):
        kfold(cohort, 5)
    with pytest.raises(SplitError, match="at least 3 folds"):
        kfold(cohort, 2)
    with pytest.raises(SplitError, match="sum to 1"):
        holdout(cohort, (0.8, 0.1, 0.2))
    with pytest.raises(SplitError, match="at least one"):
        holdout(cohort, repeats=0)
    with pytest.raises(SplitError, match="at least one"):
        kfold(cohort, 3, repeats=0)
    with pytest.raises(SplitError, match=r"4 patients are too few for 200 parts of 0\.5% or more"):
        kfold(cohort, 200)
    with pytest.raises(SplitError, match=r"'p0' has no site.*--site"):
        holdout(cohort, by_site=True)
    two_sites = tuple(Case(f"p{i}", (f"s{i}",), "ab"[i % 2], str(i % 2)) for i in range(30))
    with pytest.raises(SplitError, match="2 sites cannot fill 3 parts"):
        holdout(Cohort("c", "classification", two_sites, ("a", "b")), by_site=True)


def test_a_split_cannot_hold_a_patient_twice() -> None:
    with pytest.raises(SplitError, match="'p' is in train and in test"):
        Split(train=("p", "q"), val=("r",), test=("p",), scheme="x", repeat=0)
    with pytest.raises(SplitError, match="'p' is twice in val"):
        Split(train=("q",), val=("p", "p"), test=("r",), scheme="x", repeat=0)
    with pytest.raises(SpecError, match="repeat"):
        Split.parse({"train": ["p"], "scheme": "x", "repeat": -1})
    for scheme in ("", "..", "../x", "a/b", "a\\b"):
        with pytest.raises(SpecError, match="scheme"):
            Split.parse({"train": ["p"], "scheme": scheme, "repeat": 0})


def test_a_split_is_checked_against_the_cohort() -> None:
    cases = tuple(Case(name, (f"s{name}",), "ab"[name == "q"]) for name in "pqrs")
    cohort = Cohort("c", "classification", cases, ("a", "b"))
    Split(train=("p", "q"), val=("r",), test=("s",), scheme="x", repeat=0).check(cohort)
    faults: list[tuple[dict[str, tuple[str, ...]], str]] = [
        ({"train": ("p", "q"), "val": ("r",), "test": ()}, "test part is empty"),
        ({"train": ("p", "q"), "val": (), "test": ("r",)}, "val part is empty"),
        ({"train": ("p", "q"), "val": ("r",), "test": ("s", "z")}, "not in cohort 'c': 'z'"),
        ({"train": ("p",), "val": ("r",), "test": ("s",)}, "in no part: 'q'"),
    ]
    for parts, message in faults:
        with pytest.raises(SplitError, match=message):
            Split.parse({**parts, "scheme": "x", "repeat": 0}).check(cohort)


@quick
@given(classified(least=10), st.integers(0, 9))
def test_validation_taken_from_train_is_stratified(cohort: Cohort, seed: int) -> None:
    full = holdout(cohort, (0.6, 0.2, 0.2), repeats=1, seed=seed)[0]
    without = Split(train=tuple(sorted(full.train + full.val)), test=full.test, scheme="x", repeat=0, seed=seed)
    made = with_validation(without, cohort, 0.25)
    made.check(cohort)
    assert made.test == full.test
    totals = Counter(cohort.case(patient).target for patient in without.train)
    for name, count in Counter(cohort.case(patient).target for patient in made.val).items():
        assert abs(count - totals[name] * 0.25) < 1
    with pytest.raises(SplitError, match="already"):
        with_validation(full, cohort, 0.1)
    with pytest.raises(SplitError, match=r"share of 1\.5"):
        with_validation(without, cohort, 1.5)


@pytest.mark.parametrize("by_site", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_numbers_are_shared_out_by_quantile(seed: int, by_site: bool) -> None:
    values = np.random.default_rng(seed).lognormal(size=200)
    cases = tuple(Case(f"p{i}", (f"s{i}",), float(v), site=f"h{i % 40}") for i, v in enumerate(values))
    cohort = Cohort("numbers", "regression", cases)
    fifth = np.searchsorted(np.quantile(values, [0.2, 0.4, 0.6, 0.8]), values, side="right")
    of = dict(zip((case.case_id for case in cases), fifth, strict=True))
    for split in kfold(cohort, folds=5, seed=seed, by_site=by_site):
        counts = np.bincount([of[patient] for patient in split.test], minlength=5)
        assert abs(counts - 8).max() <= (3 if by_site else 0)


def test_equal_numbers_and_few_patients_are_split_all_the_same() -> None:
    cases = tuple(Case(f"p{i}", (f"s{i}",), float(i % 2)) for i in range(6))
    for split in kfold(Cohort("few", "regression", cases), folds=3):
        assert sorted(i for patient in split.test for i in [int(patient[1:]) % 2]) == [0, 1]
