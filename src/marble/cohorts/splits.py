"""Splits by patient: made from a seed, checked against a cohort.

A draw is a sort by a hash of (seed, repeat, id). So a split depends on nothing but the seed and the patients: not on
the order of rows, not on a random generator's state or version, not on how many splits were made before.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from marble.cohorts import balance
from marble.cohorts.cohort import Case, Cohort, ScoredBy
from marble.errors import SplitError
from marble.specs import Spec
from marble.targets import SurvivalTime, Target

PARTS = ("train", "val", "test")
_TIME_BINS = 3
_NUMBER_BINS = 5


class Split(Spec):
    """Patients to train on, to select on and to test on; never one patient in two parts."""

    train: tuple[str, ...]
    val: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    scheme: str = Field(pattern=r"^[\w=-][\w.=-]*$")  # also the name of the folder it is written to
    repeat: int = Field(ge=0)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _disjoint(self) -> Self:
        seen: dict[str, str] = {}
        for part, patients in self.parts():
            for patient in patients:
                if patient in seen:
                    where = f"split {self.repeat} of {self.scheme}"
                    pair = f"twice in {part}" if seen[patient] == part else f"in {seen[patient]} and in {part}"
                    raise SplitError(
                        f"patient '{patient}' is {pair}", where=where, hint="Keep every patient in one part"
                    )
                seen[patient] = part
        return self

    def parts(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Name and patients of each part."""
        yield from (("train", self.train), ("val", self.val), ("test", self.test))

    def part_of(self, patient: str) -> str | None:
        """The part a patient is in."""
        return next((part for part, patients in self.parts() if patient in patients), None)

    def check(self, cohort: Cohort) -> None:
        """Refuse a split that has an empty part, a patient the cohort does not have, or lacks one it has."""
        where = f"split {self.repeat} of {self.scheme}"
        for part, patients in self.parts():
            if not patients:
                raise SplitError(f"the {part} part is empty", where=where, hint=_HINTS[part])
            unknown = [patient for patient in patients if patient not in cohort]
            if unknown:
                what = f"{len(unknown)} patients of {part} are not in cohort '{cohort.name}': {_some(unknown)}"
                raise SplitError(
                    what,
                    where=where,
                    hint="Check the cohort table, or say `drop_unknown = true` in the experiment's split",
                )
        placed = {patient for _, patients in self.parts() for patient in patients}
        missing = [case.case_id for case in cohort.cases if case.case_id not in placed]
        if missing:
            what = f"{len(missing)} patients of cohort '{cohort.name}' are in no part: {_some(missing)}"
            raise SplitError(what, where=where, hint="Add them to a part, or leave them out of the cohort table")


_HINTS = {
    "train": "Give patients to train on",
    "val": "Take a share of train for validation: `val_share = 0.1` in the experiment's split",
    "test": "Test on the files' validation part: `val_as_test = true` and `val_share = 0.1` in the experiment's split",
}


def holdout(
    cohort: Cohort,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    repeats: int = 5,
    seed: int = 0,
    by_site: bool = False,
) -> list[Split]:
    """Independent random splits into train, validation and test; see `_strata` for what is kept in balance."""
    if len(fractions) != 3 or min(fractions) <= 0 or not math.isclose(sum(fractions), 1):
        raise SplitError(f"fractions {fractions} are not three shares that sum to 1", hint="For example 0.8 0.1 0.1")
    _check_repeats(repeats, seed)
    scheme = "holdout-by-site" if by_site else "holdout"
    splits = []
    for repeat in range(repeats):
        train, val, test = _deal(cohort, fractions, f"{seed}/{repeat}", by_site)
        splits.append(Split(train=train, val=val, test=test, scheme=scheme, repeat=repeat, seed=seed))
    return splits


def kfold(cohort: Cohort, folds: int = 5, repeats: int = 1, seed: int = 0, by_site: bool = False) -> list[Split]:
    """Every patient is tested once per repeat; the fold after the test fold is the validation fold."""
    if folds < 3:
        raise SplitError(f"{folds} folds", hint="Train, validation and test need at least 3 folds")
    _check_repeats(repeats, seed)
    scheme = f"kfold-{folds}-by-site" if by_site else f"kfold-{folds}"
    splits = []
    for repeat in range(repeats):
        dealt = _deal(cohort, (1 / folds,) * folds, f"{seed}/{repeat}", by_site)
        for fold in range(folds):
            val = (fold + 1) % folds
            train = sorted(p for i, patients in enumerate(dealt) if i not in (fold, val) for p in patients)
            number = repeat * folds + fold
            parts = {"train": tuple(train), "val": dealt[val], "test": dealt[fold]}
            splits.append(Split(**parts, scheme=scheme, repeat=number, seed=seed))
    return splits


def _check_repeats(repeats: int, seed: int) -> None:
    if repeats < 1:
        raise SplitError(f"{repeats} repeats", hint="Ask for at least one")
    if seed < 0:
        raise SplitError(f"the seed {seed} is negative", hint="Give a whole number from 0 on")


def with_validation(split: Split, cohort: Cohort, share: float) -> Split:
    """The split with a stratified share of its training patients as validation, where it has none."""
    if split.val:
        raise SplitError("the split has a validation part already", where=f"split {split.repeat} of {split.scheme}")
    if not 0 < share < 1:
        raise SplitError(f"a share of {share}", hint="Give a share between 0 and 1, such as 0.1")
    cases = [cohort.case(patient) for patient in split.train]
    draw = f"{split.seed}/{split.repeat}/validation"
    train, val = _deal_patients(cases, (1 - share, share), draw, cohort.scored_by)
    return split.model_copy(update={"train": train, "val": val})


def _deal(cohort: Cohort, fractions: Sequence[float], draw: str, by_site: bool) -> list[tuple[str, ...]]:
    cases = list(cohort.cases)
    if by_site:
        dealt = _deal_groups(_sites(cases, len(fractions), cohort.name), fractions, draw, cohort.scored_by)
    else:
        dealt = _deal_patients(cases, fractions, draw, cohort.scored_by)
    if not all(dealt):
        what = f"{len(cases)} patients are too few for {len(fractions)} parts of {100 * min(fractions):.3g}% or more"
        raise SplitError(what, where=cohort.name, hint=_fewer_parts(len(cases), "add patients"))
    return dealt


def _deal_patients(
    cases: list[Case], fractions: Sequence[float], draw: str, scored_by: ScoredBy
) -> list[tuple[str, ...]]:
    """By class of the patients; where a patient has slides of several classes, by the classes of the slides."""
    if scored_by == "slide" and any(case.slide_targets for case in cases):
        return _deal_groups({case.case_id: [case] for case in cases}, fractions, draw, scored_by)
    return _deal_cases(cases, fractions, draw)


def _deal_cases(cases: list[Case], fractions: Sequence[float], draw: str) -> list[tuple[str, ...]]:
    """Patients into parts; in every stratum each part gets its exact share, rounded down or up."""
    stratum_of = _strata(cases, len(fractions))
    strata: dict[str, list[Case]] = {}
    for case in cases:
        strata.setdefault(stratum_of(case.target), []).append(case)
    owed = [0.0] * len(fractions)  # how many patients each part is short of its exact share so far
    parts: list[list[str]] = [[] for _ in fractions]
    for name in sorted(strata, key=lambda name: (-len(strata[name]), _lot(draw, name))):
        counts = _round_shares(len(strata[name]), fractions, owed)
        for block, block_counts in _by_time(strata[name], counts):
            queue = sorted(block, key=lambda case: _lot(draw, case.case_id))
            for part, count in zip(parts, block_counts, strict=True):
                part += [case.case_id for case in queue[:count]]
                queue = queue[count:]
    return [tuple(sorted(part)) for part in parts]


def _round_shares(count: int, fractions: Sequence[float], owed: list[float]) -> list[int]:
    """Whole numbers that sum to `count`, each its share rounded down or up; updates what is owed."""
    exact = [count * fraction for fraction in fractions]
    whole = [math.floor(share + 1e-9) for share in exact]
    for i, share in enumerate(exact):
        owed[i] += share - whole[i]
    fractional = [i for i in range(len(exact)) if exact[i] - whole[i] > 1e-9]
    for i in sorted(fractional, key=lambda i: (-owed[i], i))[: count - sum(whole)]:
        whole[i] += 1
        owed[i] -= 1
    return whole


def _by_time(cases: list[Case], counts: list[int]) -> Iterator[tuple[list[Case], list[int]]]:
    """Cut a survival stratum into thirds by time, each with its share of the counts; other strata stay whole."""
    if not isinstance(cases[0].target, SurvivalTime) or len(cases) < _TIME_BINS * len(counts):
        yield cases, counts
        return
    ordered = sorted(cases, key=lambda case: (_time(case), case.case_id))
    left, start = list(counts), 0
    for third in range(1, _TIME_BINS + 1):
        end = len(ordered) * third // _TIME_BINS
        block, rest = ordered[start:end], len(ordered) - start
        if third == _TIME_BINS:
            here = left
        else:
            here = _round_shares(len(block), [count / rest for count in left], [0.0] * len(left))
        yield block, here
        left = [total - taken for total, taken in zip(left, here, strict=True)]
        start = end


def _sites(cases: list[Case], parts: int, cohort_name: str) -> dict[str, list[Case]]:
    sites: dict[str, list[Case]] = {}
    for case in cases:
        if case.site is None:
            hint = "Fill it in, give the site's column with --site (`site` in an experiment), or do not split by site"
            raise SplitError(f"patient '{case.case_id}' has no site", where=cohort_name, hint=hint)
        sites.setdefault(case.site, []).append(case)
    if len(sites) < parts:
        what = f"{len(sites)} site{'' if len(sites) == 1 else 's'} cannot fill {parts} parts"
        raise SplitError(what, where=cohort_name, hint=_fewer_parts(len(sites), "do not split by site"))
    return sites


def _fewer_parts(held: int, otherwise: str) -> str:
    """What helps where patients or sites do not fill the parts; fewer than three folds there cannot be."""
    folds = min(held, 5)
    if folds < 3:
        return otherwise[0].upper() + otherwise[1:]
    return f"Split them by kfold in {folds} folds (--folds {folds}; `folds` in an experiment), or {otherwise}"


def _deal_groups(
    groups: dict[str, list[Case]], fractions: Sequence[float], draw: str, scored_by: ScoredBy
) -> list[tuple[str, ...]]:
    """Whole groups into parts, so that every stratum comes as close to its shares as it can."""
    stratum_of = _strata([case for cases in groups.values() for case in cases], len(fractions))
    held = {name: _count(cases, scored_by, stratum_of) for name, cases in groups.items()}
    strata = sorted(set().union(*held.values()))
    # Groups of about the same size (same power of two) are drawn by lot, so that repeats differ.
    order = sorted(groups, key=lambda name: (-held[name].total().bit_length(), _lot(draw, name)))
    counts = np.array([[held[name][stratum] for stratum in strata] for name in order], dtype=np.float64)
    parts: list[list[str]] = [[] for _ in fractions]
    for name, part in zip(order, balance.deal(counts, fractions), strict=True):
        parts[part] += [case.case_id for case in groups[name]]
    return [tuple(sorted(part)) for part in parts]


def _count(cases: list[Case], scored_by: ScoredBy, stratum_of: Callable[[Target], str]) -> Counter[str]:
    """How many patients of each stratum; or how many slides, if slides are scored."""
    if scored_by == "case":
        return Counter(stratum_of(case.target) for case in cases)
    return Counter(stratum_of(case.target_of(slide)) for case in cases for slide in case.slides)


def _strata(cases: list[Case], parts: int) -> Callable[[Target], str]:
    """What parts are balanced by: the class; the event (then time, in thirds); or the quantile of a number.

    Numbers are cut into fifths, or fewer if there are not enough patients for each part to get some of every fifth.
    Equal numbers are never cut apart.
    """
    numbers = [case.target for case in cases if isinstance(case.target, float)]
    bins = max(1, min(_NUMBER_BINS, len(numbers) // parts))
    edges = np.quantile(numbers, np.arange(1, bins) / bins) if numbers else np.empty(0)

    def stratum(target: Target) -> str:
        if isinstance(target, SurvivalTime):
            return "event" if target.event else "censored"
        return f"quantile {np.searchsorted(edges, target, side='right')}" if isinstance(target, float) else target

    return stratum


def _time(case: Case) -> float:
    assert isinstance(case.target, SurvivalTime)
    return case.target.time


def _lot(draw: str, name: str) -> bytes:
    return hashlib.sha256(f"{draw}/{name}".encode()).digest()


def _some(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
