"""Whole groups into parts: nothing empty, nothing that one move or exchange could improve."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from marble.cohorts import Case, Cohort, balance, kfold


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 9).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=n, max_size=n)
    ),
    st.sampled_from([(0.5, 0.5), (0.8, 0.1, 0.1), (0.25, 0.25, 0.25, 0.25)]),
)
def test_no_move_and_no_exchange_helps(rows: list[list[int]], fractions: tuple[float, ...]) -> None:
    counts = np.array(rows, dtype=np.float64)
    assume(len(counts) >= len(fractions) and (counts.sum(axis=0) > 0).all() and (counts.sum(axis=1) > 0).all())
    place = balance.deal(counts, fractions)
    assert set(place) == set(range(len(fractions)))
    reached = balance.distance(counts, fractions, place)
    for group, part in itertools.product(range(len(counts)), range(len(fractions))):
        moved = place.copy()
        moved[group] = part
        if set(moved) == set(place):
            assert balance.distance(counts, fractions, moved) >= reached - 1e-6
    for a, b in itertools.combinations(range(len(counts)), 2):
        swapped = place.copy()
        swapped[[a, b]] = place[[b, a]]
        assert balance.distance(counts, fractions, swapped) >= reached - 1e-6


def test_distance_is_its_definition() -> None:
    counts = np.array([[4.0, 0.0], [2.0, 2.0], [0.0, 4.0]])
    # want (3, 3) in both parts; filled (6, 2) and (0, 4)
    assert balance.distance(counts, (0.5, 0.5), np.array([0, 0, 1])) == pytest.approx((9 + 1 + 9 + 1) / 3)


def test_many_groups_are_dealt_without_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 6, (balance.EXCHANGE_LIMIT + 1, 4)).astype(np.float64)
    monkeypatch.setattr(balance, "_exchange", None)
    place = balance.deal(counts, (0.8, 0.1, 0.1))
    for part, share in enumerate((0.8, 0.1, 0.1)):
        assert counts[place == part].sum(axis=0) / counts.sum(axis=0) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_every_part_sees_every_class_where_patients_have_slides_of_several(seed: int) -> None:
    held = {  # like a real set of 16 patients: few of them hold the rare classes
        "1": "cccdddaa", "2": "cccbbbb", "3": "abbbba", "4": "aaaaabdd", "5": "aaaa", "6": "bb", "7": "bbbbbbcc",
        "8": "b", "9": "eeeeeee", "10": "eeeeeeeedd", "11": "dddaacc", "12": "b", "13": "ee", "14": "b", "15": "ee",
        "16": "be",
    }  # fmt: skip
    cases = []
    for patient, labels in held.items():
        targets = {f"{patient}-{i}": label for i, label in enumerate(labels)}
        several = targets if len(set(labels)) > 1 else {}
        cases.append(Case(patient, tuple(targets), labels[0], None, several))
    cohort = Cohort("made", "classification", tuple(cases), tuple("abcde"), "slide")
    splits = kfold(cohort, 4, seed=seed)
    for split in splits:
        split.check(cohort)
        for _, patients in split.parts():
            seen = {
                cohort.case(patient).target_of(slide) for patient in patients for slide in cohort.case(patient).slides
            }
            assert seen == set("abcde")
    assert sorted(patient for split in splits for patient in split.test) == sorted(held)
