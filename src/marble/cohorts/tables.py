"""`read_cohort`: the tables that users have, as a checked cohort."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from marble.cohorts.assemble import Entry, assemble
from marble.cohorts.cohort import Cohort, Excluded, ScoredBy
from marble.cohorts.families import (
    TableLayout,
    case_column,
    find_layout,
    listing,
    no_slides,
    slide_column,
)
from marble.cohorts.fields import MISSING, missing_key
from marble.cohorts.reading import Reading, contradicts_patients
from marble.cohorts.spec import Drop, EventCoding, TableSpec, option
from marble.errors import TableError
from marble.identifiers import normal, slide_id_of, spelling_key, tcga_patient
from marble.pseudonyms import Pseudonyms
from marble.specs import unknown_choice
from marble.tabular import Row, Table, read_table
from marble.targets import Target, TargetKind

#: fields of a spec that only one task reads
_READ_BY: dict[str, tuple[str, ...]] = {
    "classification": ("label", "classes", "keep_as_class"),
    "regression": ("target",),
    "survival": ("time", "event", "event_coding"),
}


def read_cohort(
    path: str | Path,
    spec: TableSpec | None = None,
    *,
    slides: Iterable[str] | None = None,
    name: str | None = None,
    **choices: Any,
) -> Cohort:
    """Read a cohort table (see :mod:`marble.cohorts.families` for the layouts that need no further word).

    Args:
        path: CSV, TSV or semicolon table; may be gzipped or alone in a zip archive.
        spec: what its format does not say: which column is what, which rows count.
        slides: the names of the slides there are, for clinical tables without slides; TCGA barcodes say their patient.
        name: how the cohort is called; default: the file's name.
        choices: fields of the spec, as `label="KRAS"`; they go before it.
    """
    if not isinstance(path, str | Path):
        hint = "Write it with to_csv(FILE, index=False) and give the file; `marble.fit` takes columns as they are"
        raise TableError(f"a table is read from a file, got {type(path).__name__}", hint=hint)
    spec = replace(spec or TableSpec(), **choices)
    _check_choices(spec, str(path))
    table = read_table(path)
    layout = find_layout(table, spec)
    known = None if spec.classes is None else tuple(normal(one) for one in spec.classes)
    reading = Reading(
        table,
        layout,
        coding=spec.event_coding or layout.coding,
        drop=tuple(spec.drop),
        classes=None if known is None else frozenset(known),
        keep=frozenset(map(missing_key, spec.keep_as_class)),
        case_is_slide=spec.case_is_slide,
        pseudonyms=None if spec.pseudonyms is None else Pseudonyms.read(spec.pseudonyms),
    )
    if spec.case_is_slide and layout.case is not None:
        raise contradicts_patients(table, layout.case)
    if layout.slide is not None:
        if spec.slide_table is not None or slides is not None:
            hint = f"Leave out {option('slide_table')}"
            raise table.header_fault("the table names the slides itself", layout.slide, hint)
        entries = _read_slide_rows(reading)
    elif spec.slide_table is not None:
        entries = _join_table(reading, read_table(spec.slide_table))
    elif slides is not None:
        entries = _join_names(reading, slides)
    else:
        raise no_slides(table)
    reading.check_missing()
    return assemble(
        entries,
        name=name or cohort_name(path),
        table=table,
        layout=layout,
        classes=known,
        scored_by=spec.scored_by,
        notes=[*reading.notes(spec.event_coding), *_unused(spec, layout)],
        excluded=reading.excluded,
    )


def _unused(spec: TableSpec, layout: TableLayout) -> Iterator[str]:
    """Choices that were made for another task than the one that is read: not wrong, but they change nothing."""
    task = "classification" if layout.label is not None else "regression" if layout.target is not None else "survival"
    for reader, keys in _READ_BY.items():
        for key in keys:
            if reader != task and getattr(spec, key):
                yield f"{option(key)} is not used: the task is {task}"
    if "other" in spec.drop and not (task == "classification" and spec.classes):
        yield f"{option('drop')} = other leaves nothing out: it needs {option('classes')}, of a classification"


def cohort_name(path: str | Path) -> str:
    """The file's name without what only says how it is packed."""
    return re.sub(r"(\.(csv|tsv|txt|zip|gz))+$", "", Path(path).name, flags=re.IGNORECASE)


def _read_slide_rows(reading: Reading) -> list[Entry]:
    table, layout = reading.table, reading.layout
    assert layout.slide is not None
    entries = []
    for row in table.rows:
        slide_id = reading.slide_id(table, row, layout.slide)
        case_id = reading.case_id(table, row, layout.case, slide_id)
        target = reading.target(row, slide_id)
        entries.append(Entry(table, row, layout.slide, case_id, slide_id, target, reading.site(row, case_id)))
    return entries


#: a patient of a clinical table, by the key of its spelling: the id as written there, its row and its target
Patients = dict[str, tuple[str, Row, Target | None]]


def _read_patients(reading: Reading) -> Patients:
    table, column = reading.table, reading.layout.case
    assert column is not None
    patients: Patients = {}
    for row in table.rows:
        case_id = reading.case_id(table, row, column, None)
        before = patients.get(spelling_key(case_id))
        if before is not None:
            what = f"patient '{case_id}' is already in row {before[1].line}"
            raise table.fault(row, column, what, "Keep one row per patient")
        patients[spelling_key(case_id)] = (case_id, row, reading.target(row, case_id))
    return patients


def _join_table(reading: Reading, other: Table) -> list[Entry]:
    """Patients of the clinical table with the slides of a slide table; neither side loses a row uncounted."""
    patients = _read_patients(reading)
    case, slide = case_column(other), slide_column(other)
    if slide is None:
        hint = f"Name the slide column slide_id; columns here: {listing(other)}"
        raise other.header_fault("the slide table has no slide column", "slide_id", hint)
    pairs = []
    for row in other.rows:
        slide_id = reading.slide_id(other, row, slide)
        pairs.append((other, row, slide, reading.case_id(other, row, case, slide_id), slide_id))
    return _joined(reading, patients, pairs)


def _join_names(reading: Reading, slides: Iterable[str]) -> list[Entry]:
    patients = _read_patients(reading)
    anchor = reading.table.rows[0]
    pairs = []
    for name in slides:
        slide_id = slide_id_of(name)
        case_id = slide_id if spelling_key(slide_id) in patients else tcga_patient(slide_id) or slide_id
        found = patients.get(spelling_key(case_id))
        pairs.append((reading.table, found[1] if found else anchor, reading.layout.case or "", case_id, slide_id))
    return _joined(reading, patients, pairs)


def _joined(reading: Reading, patients: Patients, pairs: list[tuple[Table, Row, str, str, str]]) -> list[Entry]:
    entries = []
    with_slides = set()
    for table, row, column, case_id, slide_id in pairs:
        found = patients.get(spelling_key(case_id))
        if found is None:
            reading.excluded.append(Excluded(slide_id, "patient is not in the clinical table"))
            continue
        written, home, target = found
        if written != case_id:
            reading.noticed[f"patient '{case_id}' is '{written}' in the clinical table, which is used"] += 1
        with_slides.add(written)
        entries.append(Entry(table, row, column, written, slide_id, target, reading.site(home, written)))
    reading.excluded += [
        Excluded(case_id, "patient has no slide", slides=0)
        for case_id, _, target in patients.values()
        if case_id not in with_slides and target is not None
    ]
    return entries


def _check_choices(spec: TableSpec, where: str) -> None:
    """Refuse a choice that does not exist, by name and with those that do."""
    checks: list[tuple[str, Sequence[str | None], tuple[str, ...]]] = [
        ("task", [spec.task], get_args(TargetKind)),
        ("scored_by", [spec.scored_by], get_args(ScoredBy)),
        ("event_coding", [spec.event_coding], get_args(EventCoding)),
        ("drop", spec.drop, get_args(Drop)),
    ]
    for what, given, valid in checks:
        for choice in given:
            if choice is not None and choice not in valid:
                raise TableError(unknown_choice(what, choice, list(valid)), where=where)
    names = spec.classes
    if names is not None and (isinstance(names, str) or len(set(names)) != len(names) or len(names) < 2):
        what = f"classes {names!r} are not two or more different names"
        raise TableError(what, where=where, hint="Give each class once")
    for word in [spec.keep_as_class] if isinstance(spec.keep_as_class, str) else spec.keep_as_class:
        if missing_key(word) not in MISSING or not missing_key(word):
            what = f"'{word}' is no word for a missing value, so it is a class anyway"
            raise TableError(what, where=where, hint=f"Leave it out of {option('keep_as_class')}")
