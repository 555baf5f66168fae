"""`read_cohort`: the tables that users have, as a checked cohort."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from marble.cohorts.assemble import Entry, assemble
from marble.cohorts.cohort import Cohort, Excluded, ScoredBy, TaskName
from marble.cohorts.families import (
    ColumnChoices,
    EventCoding,
    case_column,
    find_layout,
    listing,
    no_slides,
    option,
    slide_column,
)
from marble.cohorts.fields import MISSING, missing_key
from marble.cohorts.reading import Reading, contradicts_patients
from marble.errors import TableError
from marble.identifiers import normal, slide_id_of, spelling_key, tcga_patient
from marble.specs import unknown_choice
from marble.tabular import Row, Table, read_table
from marble.targets import Target

Drop = Literal["missing", "other"]


def read_cohort(
    path: str | Path,
    *,
    task: TaskName | None = None,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    keep_as_class: Sequence[str] = (),
    target: str | None = None,
    time: str | None = None,
    event: str | None = None,
    event_coding: EventCoding | None = None,
    case: str | None = None,
    case_is_slide: bool = False,
    slide: str | None = None,
    site: str | None = None,
    slide_table: str | Path | None = None,
    slides: Iterable[str] | None = None,
    scored_by: ScoredBy = "case",
    drop: Sequence[Drop] = (),
    name: str | None = None,
) -> Cohort:
    """Read a cohort table (see :mod:`marble.cohorts.families` for the layouts that need no further word).

    Args:
        path: CSV, TSV or semicolon table; may be gzipped or alone in a zip archive.
        task: what to predict, where the table has both a label and a survival time; a number must be asked for.
        label: the column of the class.
        classes: the classes and their order; default: all that occur, sorted.
        keep_as_class: words such as `None` or `unknown` that are a class here; otherwise they mean a missing value.
        target: the column of the number, for regression.
        time: the column of the time under observation.
        event: the column of the event.
        event_coding: what 1 means in the event column; needed unless the format fixes it or the cells are words.
        case: the column of the patient.
        case_is_slide: every slide is of another patient; without this a table needs a patient column.
        slide: the column of the slide.
        site: the column of the hospital; TCGA barcodes say it themselves.
        slide_table: a second table with patient and slide columns, for clinical tables without slides.
        slides: or the names of the slides there are; TCGA barcodes say their patient.
        scored_by: "slide" allows slides of one patient to have different targets.
        drop: leave out, and count, rows without a target ("missing") or of a class not in `classes` ("other").
        name: how the cohort is called; default: the file's name.
    """
    _check_choices(str(path), task, scored_by, event_coding, drop, classes, keep_as_class)
    table = read_table(path)
    layout = find_layout(table, ColumnChoices(task, case, slide, site, label, time, event, target))
    known = None if classes is None else tuple(normal(one) for one in classes)
    reading = Reading(
        table,
        layout,
        coding=event_coding or layout.coding,
        drop=tuple(drop),
        classes=None if known is None else frozenset(known),
        keep=frozenset(map(missing_key, keep_as_class)),
        case_is_slide=case_is_slide,
    )
    if case_is_slide and layout.case is not None:
        raise contradicts_patients(table, layout.case)
    if layout.slide is not None:
        if slide_table is not None or slides is not None:
            hint = f"Leave out {option('slide_table')}"
            raise table.header_fault("the table names the slides itself", layout.slide, hint)
        entries = _read_slide_rows(reading)
    elif slide_table is not None:
        entries = _join_table(reading, read_table(slide_table))
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
        scored_by=scored_by,
        notes=reading.notes(event_coding),
        excluded=reading.excluded,
    )


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


def _check_choices(
    source: str,
    task: str | None,
    scored_by: str,
    event_coding: str | None,
    drop: Sequence[str],
    classes: Sequence[str] | None,
    keep_as_class: Sequence[str],
) -> None:
    checks: list[tuple[str, Sequence[str | None], list[str]]] = [
        ("task", [task], ["classification", "survival", "regression"]),
        ("scored_by", [scored_by], ["case", "slide"]),
        ("event_coding", [event_coding], ["1=event", "1=censored"]),
        ("drop", drop, ["missing", "other"]),
    ]
    for what, given, valid in checks:
        for choice in given:
            if choice is not None and choice not in valid:
                raise TableError(unknown_choice(what, choice, valid), where=source)
    if classes is not None and (isinstance(classes, str) or len(set(classes)) != len(classes) or len(classes) < 2):
        what = f"classes {classes!r} are not two or more different names"
        raise TableError(what, where=source, hint="Give each class once")
    for word in [keep_as_class] if isinstance(keep_as_class, str) else keep_as_class:
        if missing_key(word) not in MISSING or not missing_key(word):
            what = f"'{word}' is no word for a missing value, so it is a class anyway"
            raise TableError(what, where=source, hint=f"Leave it out of {option('keep_as_class')}")
