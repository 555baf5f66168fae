"""What is wrong with a split: patients on both sides, missing test sets, names that mean the same patient."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from marble.cohorts.again import drawn_again
from marble.cohorts.cohort import Cohort
from marble.cohorts.split_files import Member, SplitFile, load_split_files, patient_of, refuse_two_meanings
from marble.cohorts.splits import PARTS, Split
from marble.identifiers import listed_id, spelling_key, tcga_patient, tcga_site
from marble.targets import SurvivalTime

Kind = Literal["leak", "fault", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing the audit found: a leak (results cannot be trusted), a fault, or a note."""

    kind: Kind
    what: str
    between: tuple[str, ...] = ()  # the parts concerned
    names: tuple[str, ...] = ()  # the patients or sites concerned, all of them
    unknown_patients: bool = False  # nobody said whose slides these are

    def line(self) -> str:
        return f"{self.kind}: {self.what}" + (f": {', '.join(self.names)}" if self.names else "")


@dataclass(frozen=True)
class SplitAudit:
    """The findings on one split, with the patients and labels of each part."""

    source: str
    number: int
    sizes: dict[str, str]  # by part, as text
    findings: tuple[Finding, ...]

    def shared(self, one: str, other: str) -> tuple[str, ...]:
        """The patients that two parts share."""
        pair = {one, other}
        return tuple(
            name
            for found in self.findings
            if found.kind == "leak" and set(found.between) == pair
            for name in found.names
        )


@dataclass(frozen=True)
class Audit:
    """The findings on all splits of a file or folder."""

    splits: tuple[SplitAudit, ...] = field(default_factory=tuple)

    @property
    def leaks(self) -> bool:
        """Whether any patient is on two sides of any split."""
        return any(found.kind == "leak" for split in self.splits for found in split.findings)

    @property
    def faults(self) -> bool:
        """Whether any split lacks a test set, or does not fit the cohort."""
        return any(found.kind == "fault" for split in self.splits for found in split.findings)

    @property
    def unknown_patients(self) -> bool:
        """Whether names in any split cannot be traced to patients, so that leaks would not be seen."""
        return any(found.unknown_patients for split in self.splits for found in split.findings)

    def lines(self) -> list[str]:
        """The whole report, for printing."""
        lines = []
        for split in self.splits:
            lines.append(f"{split.source} (split {split.number})")
            lines += [f"  {part}: {size}" for part, size in split.sizes.items()]
            lines += [f"  {found.line()}" for found in split.findings]
            if not any(found.kind in ("leak", "fault") for found in split.findings):
                lines.append("  ok: no patient is in two parts, and there is a test set")
        leaking = sum(any(found.kind == "leak" for found in split.findings) for split in self.splits)
        faulty = sum(any(found.kind == "fault" for found in split.findings) for split in self.splits)
        lines.append(f"splits: {len(self.splits)}, with leaked patients: {leaking}, with other faults: {faulty}")
        return lines


def audit(
    what: str | Path | Split | Sequence[Split],
    cohort: Cohort | None = None,
    *,
    case_is_slide: bool = False,
    contents: Mapping[str, str] | None = None,
    alike: Iterable[tuple[str, str]] = (),
) -> Audit:
    """Audit a split file, a folder of them, or splits.

    Without a cohort, the file itself or TCGA barcodes say who the patients are; other names are a fault, unless
    `case_is_slide` says that each is a patient. `contents` are hashes of the slides' files by slide id: one file under
    two names is a leak, whatever the patients are called. `alike` are pairs of slides that show the same tissue, as
    `marble.bags.lookalikes` finds them: a leak where they are in two parts.
    """
    if isinstance(what, str | Path):
        stated = load_split_files(what)
    else:
        stated = [_as_stated(split) for split in ([what] if isinstance(what, Split) else what)]
    known, pairs = contents or {}, tuple(alike)
    found = [_audit_one(split, cohort, case_is_slide, known, pairs) for split in stated]
    names = [{part: [member.name for member in split.members[part]] for part in PARTS} for split in stated]
    for place, earlier in drawn_again(names).items():
        note = Finding("note", f"divides the patients as split {stated[earlier].number} does")
        found[place] = replace(found[place], findings=(*found[place].findings, note))
    return Audit(tuple(found))


def _as_stated(split: Split) -> SplitFile:
    members = {part: tuple(Member(name, 0, name) for name in names) for part, names in split.parts()}
    return SplitFile(split.scheme, split.repeat, split.scheme, split.seed, members)


def _audit_one(
    split: SplitFile,
    cohort: Cohort | None,
    case_is_slide: bool,
    contents: Mapping[str, str],
    alike: Sequence[tuple[str, str]],
) -> SplitAudit:
    resolve = _Patients(cohort)
    if cohort is not None:
        refuse_two_meanings(split, cohort)
    by_part = {part: {resolve(member.stands_for) for member in split.members[part]} for part in PARTS}
    findings = [
        *_shared_patients(by_part),
        *_shared_contents(slides := _slides(split, by_part, cohort), cohort, contents),
        *_shared_tissue(slides, cohort, alike),
        *_spellings(split, resolve),
        *_repeated(split),
        *_empty_parts(split),
        *(_against_cohort(split, by_part, resolve, cohort) if cohort is not None else ()),
        *(_unknown_patients(split) if cohort is None and not case_is_slide else ()),
        *_shared_sites(by_part, cohort),
    ]
    sizes = {part: _size(split.members[part], by_part[part], cohort) for part in PARTS}
    return SplitAudit(split.source, split.number, sizes, tuple(findings))


class _Patients:
    """Who a name stands for, with all spellings of one patient as one."""

    def __init__(self, cohort: Cohort | None) -> None:
        self._cohort = cohort
        self._names: dict[str, str] = {}
        for case in cohort.cases if cohort is not None else ():
            self._names[spelling_key(case.case_id)] = case.case_id

    def __call__(self, name: str) -> str:
        patient = patient_of(name, self._cohort)
        return self._names.setdefault(spelling_key(patient), patient)


def _shared_patients(by_part: dict[str, set[str]]) -> Iterable[Finding]:
    for one, other in combinations(PARTS, 2):
        shared = sorted(by_part[one] & by_part[other])
        if shared:
            yield Finding("leak", f"{_count(shared, 'patient')} in both {one} and {other}", (one, other), tuple(shared))


def _slides(split: SplitFile, by_part: dict[str, set[str]], cohort: Cohort | None) -> dict[str, set[str]]:
    """The slides of each part: those that the split names, and those of its patients."""
    slides = {part: {listed_id(member.name) for member in split.members[part]} for part in PARTS}
    if cohort is not None:
        for part, patients in by_part.items():
            slides[part] |= {slide for name in patients if name in cohort for slide in cohort.case(name).slides}
    return slides


def _shared_contents(
    slides: Mapping[str, set[str]], cohort: Cohort | None, contents: Mapping[str, str]
) -> Iterable[Finding]:
    """Slides of two parts that are the same file."""
    for one, other in combinations(PARTS, 2):
        there = {contents[slide]: slide for slide in sorted(slides[other]) if slide in contents}
        pairs = [(slide, there[contents[slide]]) for slide in sorted(slides[one]) if contents.get(slide) in there]
        same = tuple(_both(slide, twin, cohort) for slide, twin in pairs if slide != twin)
        if same:
            yield Finding("leak", f"{_count(same, 'slide')} of {one} and {other} from one file", (one, other), same)


def _shared_tissue(
    slides: Mapping[str, set[str]], cohort: Cohort | None, alike: Sequence[tuple[str, str]]
) -> Iterable[Finding]:
    """Slides of two parts that show the same tissue."""
    for one, other in combinations(PARTS, 2):
        either = [(slide, twin) for pair in alike for slide, twin in (pair, pair[::-1])]
        pairs = sorted((slide, twin) for slide, twin in either if slide in slides[one] and twin in slides[other])
        same = tuple(_both(slide, twin, cohort) for slide, twin in pairs)
        if same:
            what = f"{_count(same, 'slide')} of {one} with the same tissue as one of {other}"
            yield Finding("leak", what, (one, other), same)


def _both(slide: str, twin: str, cohort: Cohort | None) -> str:
    """Two slides, and whose they are where that is known."""
    return " = ".join(
        f"{name} (patient {cohort.case_of(name).case_id})" if cohort is not None and cohort.has_slide(name) else name
        for name in (slide, twin)
    )


def _spellings(split: SplitFile, resolve: _Patients) -> Iterable[Finding]:
    """Names that other tools take for different patients although only case or blanks differ."""
    seen: dict[str, dict[str, set[str]]] = {}
    for part, member in split.all():
        name = member.stands_for
        spelling = patient_of(name, None) if name == name.strip() else name
        seen.setdefault(resolve(name), {}).setdefault(spelling, set()).add(part)
    for patient, spellings in sorted(seen.items()):
        known = {*spellings, patient}
        if any(text != text.strip() or _only_case_differs(text, known) for text in spellings):
            parts = tuple(part for part in PARTS if any(part in found for found in spellings.values()))
            listed = " and ".join(repr(text) for text in sorted(spellings))
            yield Finding("fault", f"patient {patient} is spelt {listed} (in {', '.join(parts)})", parts)


def _only_case_differs(text: str, spellings: Iterable[str]) -> bool:
    return any(other != text and other.strip().casefold() == text.strip().casefold() for other in spellings)


def _repeated(split: SplitFile) -> Iterable[Finding]:
    for part in PARTS:
        counts = Counter(listed_id(member.name) for member in split.members[part])
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            yield Finding("fault", f"{_count(twice, 'name')} more than once in {part}", (part,), tuple(twice))


def _empty_parts(split: SplitFile) -> Iterable[Finding]:
    consequence = {
        "train": "there is nothing to train on",
        "val": "the checkpoint would have to be chosen on test or on train",
        "test": "results could only be reported on the patients that chose the checkpoint",
    }
    for part in PARTS:
        if not split.members[part]:
            yield Finding("fault", f"no {part} set: {consequence[part]}", (part,))


def _against_cohort(
    split: SplitFile, by_part: dict[str, set[str]], resolve: _Patients, cohort: Cohort
) -> Iterable[Finding]:
    for part in PARTS:
        unknown = sorted({member.name for member in split.members[part] if resolve(member.stands_for) not in cohort})
        if unknown:
            what = f"{_count(unknown, 'name')} of {part} not in cohort {cohort.name}"
            yield Finding("fault", what, (part,), tuple(unknown))
    slides = {listed_id(member.name) for _, member in split.all() if resolve(member.stands_for) in cohort}
    absent = sorted(name for name in slides if name not in cohort and not cohort.has_slide(name) and _is_slide(name))
    if absent:
        yield Finding(
            "note", f"{_count(absent, 'slide')} of known patients not in cohort {cohort.name}", (), tuple(absent)
        )
    placed = set().union(*by_part.values())
    uncovered = sorted(case.case_id for case in cohort.cases if case.case_id not in placed)
    if uncovered:
        yield Finding("fault", f"{_count(uncovered, 'patient')} of {cohort.name} in no part", (), tuple(uncovered))


def _unknown_patients(split: SplitFile) -> Iterable[Finding]:
    unsaid = {listed_id(member.name) for _, member in split.all() if member.patient is None}
    names = sorted(name for name in unsaid if tcga_patient(name) is None)
    if names:
        what = (
            f"whose slides {_count(names, 'name')} may be is not known, so leaks would not be seen: give the "
            "cohort table too, or say --case-is-slide if each is another patient"
        )
        yield Finding("fault", what, unknown_patients=True)


def _shared_sites(by_part: dict[str, set[str]], cohort: Cohort | None) -> Iterable[Finding]:
    sites = {part: {site for name in names if (site := _site(name, cohort))} for part, names in by_part.items()}
    shared = sorted(sites["train"] & sites["test"])
    if sites["train"] and sites["test"]:
        total = len(sites["train"] | sites["val"] | sites["test"])
        what = f"{len(shared)} of {total} sites in both train and test (to be expected unless split by site)"
        yield Finding("note", what, ("train", "test"))


def _is_slide(name: str) -> bool:
    return tcga_patient(name) not in (None, name)


def _site(patient: str, cohort: Cohort | None) -> str | None:
    if cohort is not None and patient in cohort:
        return cohort.case(patient).site
    return tcga_site(patient)


def _size(members: Sequence[Member], patients: set[str], cohort: Cohort | None) -> str:
    text = f"{len(members)} names, {len(patients)} patients"
    if cohort is None:
        return text
    targets = [cohort.case(patient).target for patient in patients if patient in cohort]
    if cohort.task == "survival":
        events = sum(isinstance(target, SurvivalTime) and target.event for target in targets)
        return f"{text}; {events} events, {len(targets) - events} censored"
    if cohort.task == "regression":
        numbers = [target for target in targets if isinstance(target, float)]
        return f"{text}; median {statistics.median(numbers):g}" if numbers else text
    counts = Counter(targets)
    return f"{text}; " + ", ".join(f"{name} {counts[name]}" for name in cohort.classes)


def _count(items: Sequence[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
