"""From rows to patients: group, check that a patient's rows agree, and count what is left out."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from marble.cohorts.cohort import Case, Cohort, Excluded, ScoredBy
from marble.cohorts.families import TableLayout
from marble.cohorts.fields import class_key
from marble.cohorts.spec import option
from marble.cohorts.splits import PARTS
from marble.identifiers import spelling_key
from marble.tabular import Row, Table
from marble.targets import SurvivalTime, Target


@dataclass(frozen=True)
class Entry:
    """One slide of a table, with the cell that named it."""

    table: Table
    row: Row
    column: str
    case_id: str
    slide_id: str
    target: Target | None  # None: left out, already counted
    site: str | None


def assemble(
    entries: Sequence[Entry],
    *,
    name: str,
    table: Table,
    layout: TableLayout,
    classes: tuple[str, ...] | None,
    scored_by: ScoredBy,
    notes: list[str],
    excluded: list[Excluded],
) -> Cohort:
    """Build the cohort; patients and slides are sorted, so that the order of rows does not matter."""
    _check_slides(entries)
    _check_spellings(entries)
    used = [entry for entry in entries if entry.target is not None]
    target_column = layout.label or layout.event or layout.target or ""
    if not used:
        hint = "Check the columns, and what was left out"
        raise table.header_fault("no row of the table can be used", target_column, hint)
    if layout.task == "classification":
        _check_class_spellings(used, target_column)
        classes = classes or sorted_classes({entry.target for entry in used if isinstance(entry.target, str)})
        _check_classes(used, classes, table, target_column, notes)
    elif layout.task == "regression":
        _check_numbers(used, table, target_column, notes)
    elif not any(entry.target.event for entry in used if isinstance(entry.target, SurvivalTime)):
        what = f"no event in {len({entry.case_id for entry in used})} cases"
        raise table.header_fault(
            what, target_column, f"Check {option('event_coding')}: 0 and 1 may be the other way round"
        )
    groups: dict[str, list[Entry]] = {}
    for entry in sorted(used, key=lambda entry: (entry.case_id, entry.slide_id)):
        groups.setdefault(entry.case_id, []).append(entry)
    _note_zero_padding(groups, notes)
    cases = tuple(_case(rows, scored_by, classes or (), layout, notes) for rows in groups.values())
    return Cohort(
        name=name,
        task=layout.task,
        cases=cases,
        classes=classes or () if layout.task == "classification" else (),
        scored_by=scored_by,
        source=table.source,
        notes=tuple(notes),
        excluded=tuple(excluded),
    )


def sorted_classes(names: set[str]) -> tuple[str, ...]:
    """Class names in order: by value if all are whole numbers, else by name."""
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _case(
    rows: list[Entry], scored_by: ScoredBy, classes: tuple[str, ...], layout: TableLayout, notes: list[str]
) -> Case:
    first = rows[0]
    targets = {row.slide_id: row.target for row in rows if row.target is not None}
    differs = next((row for row in rows if row.target != first.target), None)
    if differs is not None and scored_by == "case":
        what = (
            f"patient '{first.case_id}' has {_said(differs.target)} here, {_said(first.target)} in row {first.row.line}"
        )
        hint = f"Give the patient one target, or score by slide with {option('scored_by')}"
        raise differs.table.fault(differs.row, layout.target_column or differs.column, what, hint)
    sites = {row.site for row in rows}
    if len(sites) > 1:
        notes.append(f"patient '{first.case_id}' has slides from several sites: counted as having none")
    slides = tuple(row.slide_id for row in rows)
    site = first.site if len(sites) == 1 else None
    assert first.target is not None
    if differs is None:
        return Case(first.case_id, slides, first.target, site)
    return Case(first.case_id, slides, _commonest(list(targets.values()), classes), site, targets)


def _commonest(targets: list[Target], classes: tuple[str, ...]) -> Target:
    """The most frequent target; among equals the later class, or the longest time. Of numbers, the median."""
    numbers = [target for target in targets if isinstance(target, float)]
    if numbers:
        return statistics.median(numbers)
    counts = Counter(targets)

    def rank(target: Target) -> tuple[int, float]:
        return counts[target], target.time if isinstance(target, SurvivalTime) else classes.index(str(target))

    return max(targets, key=rank)


def _check_slides(entries: Sequence[Entry]) -> None:
    """One row per slide; and no slide under two patients in two spellings, of whom one may be tested on."""
    seen: dict[str, Entry] = {}
    spelt: dict[str, Entry] = {}
    for entry in entries:
        before = seen.setdefault(entry.slide_id, entry)
        if before is not entry:
            same = "an identical row" if before.row.cells == entry.row.cells else "another row"
            what = f"slide '{entry.slide_id}' is already in row {before.row.line} ({same})"
            raise entry.table.fault(entry.row, entry.column, what, "Keep one row per slide")
        like = spelt.setdefault(entry.slide_id.casefold(), entry)
        if like.case_id != entry.case_id:
            what = f"slide '{entry.slide_id}' of patient '{entry.case_id}' is '{like.slide_id}' of patient "
            what += f"'{like.case_id}' in row {like.row.line}"
            hint = "Give it to one patient, or ids that differ in more than case if they are two slides"
            raise entry.table.fault(entry.row, entry.column, what, hint)


def _check_spellings(entries: Sequence[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        before = seen.setdefault(spelling_key(entry.case_id), entry)
        if before.case_id != entry.case_id:
            what = f"patient '{entry.case_id}' is '{before.case_id}' in row {before.row.line}"
            raise entry.table.fault(entry.row, entry.column, what, "Write one patient's id in one way")


def _check_class_spellings(used: Sequence[Entry], column: str) -> None:
    seen: dict[str, Entry] = {}
    for entry in used:
        assert isinstance(entry.target, str)
        before = seen.setdefault(class_key(entry.target), entry)
        if before.target != entry.target:
            what = f"class '{entry.target}' is '{before.target}' in row {before.row.line}"
            raise entry.table.fault(entry.row, column, what, "Write one class in one way")


def _check_classes(
    used: Sequence[Entry], classes: tuple[str, ...], table: Table, column: str, notes: list[str]
) -> None:
    counts = Counter(entry.target for entry in used)
    if len(classes) < 2:
        raise table.header_fault(f"only one class, '{classes[0]}'", column, "Give a label with two or more classes")
    notes += [f"class '{name}' has no case" for name in classes if not counts[name]]
    patients = Counter(target for _, target in {(entry.case_id, entry.target) for entry in used})
    notes += [
        f"class '{name}' has {patients[name]} of {sum(patients.values())} cases: not every part of a split can have one"
        for name in classes
        if 0 < patients[name] < len(PARTS)
    ]
    if len(classes) > 100:
        what = f"{len(classes)} different classes in {len(used)} rows"
        raise table.header_fault(what, column, "Check that this is the label column")


def _check_numbers(used: Sequence[Entry], table: Table, column: str, notes: list[str]) -> None:
    values = {entry.target for entry in used}
    if len(values) < 2:
        what = f"all {len(used)} rows have the value {_said(used[0].target)}"
        raise table.header_fault(what, column, f"Give a column whose numbers differ with {option('target')}")
    if len(values) == 2 < len(used):
        notes.append(f"column '{column}' has only two different numbers: is it a class?")


def _note_zero_padding(groups: dict[str, list[Entry]], notes: list[str]) -> None:
    digits: dict[str, str] = {}
    for case_id in groups:
        if case_id.isdigit():
            before = digits.setdefault(case_id.lstrip("0"), case_id)
            if before != case_id:
                notes.append(f"'{before}' and '{case_id}' are two patients: ids are text, zeros count")


def _said(target: Target | None) -> str:
    if isinstance(target, SurvivalTime):
        return f"time {target.time:g}, {'event' if target.event else 'censored'}"
    if isinstance(target, float):
        return f"{target:g}"
    return f"class '{target}'"
