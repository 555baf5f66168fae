"""`read_cohort`: the tables that users have, as a checked cohort."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marble.cohorts.assemble import Entry, assemble
from marble.cohorts.cohort import Cohort, Excluded, ScoredBy, TaskName
from marble.cohorts.families import (
    CASE_COLUMNS,
    SLIDE_COLUMNS,
    ColumnChoices,
    EventCoding,
    TableLayout,
    find_layout,
    no_slides,
)
from marble.cohorts.fields import read_event, read_id, read_label, read_time
from marble.errors import TableError
from marble.identifiers import slide_id_of, tcga_patient, tcga_site
from marble.specs import unknown_choice
from marble.tabular import Row, Table, read_table
from marble.targets import SurvivalTime, Target

Drop = Literal["missing", "other"]


def read_cohort(
    path: str | Path,
    *,
    task: TaskName | None = None,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    time: str | None = None,
    event: str | None = None,
    event_coding: EventCoding | None = None,
    case: str | None = None,
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
        task: what to predict, where the table has both a label and a survival time.
        label: the column of the class.
        classes: the classes and their order; default: all that occur, sorted.
        time: the column of the time under observation.
        event: the column of the event.
        event_coding: what 1 means in the event column; needed unless the format fixes it or the cells are words.
        case: the column of the patient.
        slide: the column of the slide.
        site: the column of the hospital; TCGA barcodes say it themselves.
        slide_table: a second table with patient and slide columns, for clinical tables without slides.
        slides: or the names of the slides there are; TCGA barcodes say their patient.
        scored_by: "slide" allows slides of one patient to have different targets.
        drop: leave out, and count, rows without a target ("missing") or of a class not in `classes` ("other").
        name: how the cohort is called; default: the file's name.
    """
    _check_choices(str(path), task, scored_by, event_coding, drop, classes)
    table = read_table(path)
    layout = find_layout(table, ColumnChoices(task, case, slide, site, label, time, event))
    coding = event_coding or layout.coding
    reading = _Reading(table, layout, coding, tuple(drop), None if classes is None else set(classes))
    if layout.slide is not None:
        if slide_table is not None or slides is not None:
            hint = "Leave out slide_table= and slides="
            raise table.header_fault("the table names the slides itself", layout.slide, hint)
        entries = _read_slide_rows(reading)
    elif slide_table is not None:
        entries = _join_table(reading, read_table(slide_table))
    elif slides is not None:
        entries = _join_names(reading, slides)
    else:
        raise no_slides(table)
    return assemble(
        entries,
        name=name or cohort_name(path),
        table=table,
        layout=layout,
        classes=None if classes is None else tuple(classes),
        scored_by=scored_by,
        notes=_notes(reading, event_coding),
        excluded=reading.excluded,
    )


def cohort_name(path: str | Path) -> str:
    """The file's name without what only says how it is packed."""
    return re.sub(r"(\.(csv|tsv|txt|zip|gz))+$", "", Path(path).name, flags=re.IGNORECASE)


@dataclass
class _Reading:
    """One pass over a table: its layout, and what was noticed on the way."""

    table: Table
    layout: TableLayout
    coding: EventCoding | None
    drop: tuple[Drop, ...]
    classes: set[str] | None

    def __post_init__(self) -> None:
        self.excluded: list[Excluded] = []
        self.noticed: Counter[str] = Counter()

    def target(self, row: Row, name: str) -> Target | None:
        """The target of a row, or None (counted) where the row is to be left out."""
        found, column = self._parse(row)
        if found is None:
            if "missing" not in self.drop:
                hint = 'Fill it in, remove the row, or leave such rows out with drop=("missing",)'
                raise self.table.fault(row, column, f"no value for '{name}'", hint)
            self.excluded.append(Excluded(name, f"no {column}"))
        elif isinstance(found, str) and self.classes is not None and found not in self.classes:
            if "other" not in self.drop:
                what = unknown_choice("class", found, sorted(self.classes))
                hint = 'Add it to classes=, or leave such rows out with drop=("other",)'
                raise self.table.fault(row, column, what, hint)
            self.excluded.append(Excluded(name, f"class {found} is not one of the classes"))
            return None
        return found

    def _parse(self, row: Row) -> tuple[Target | None, str]:
        layout = self.layout
        if layout.task == "classification":
            assert layout.label is not None
            return read_label(self.table, row, layout.label), layout.label
        assert layout.time is not None
        assert layout.event is not None
        time = read_time(self.table, row, layout.time)
        event = read_event(self.table, row, layout.event, self.coding)
        if time is None or event is None:
            return None, layout.time if time is None else layout.event
        return SurvivalTime(time, event), layout.time

    def case_id(self, table: Table, row: Row, column: str | None, slide_id: str | None) -> str:
        """The patient of a row: the cell, cut to the patient part of a TCGA barcode; or from the slide's barcode."""
        from_slide = None if slide_id is None else tcga_patient(slide_id)
        if column is None or (from_slide is not None and not table.cell(row, column)):
            if from_slide is not None:
                self.noticed["patient taken from the slide's TCGA barcode"] += 1
                return from_slide
            assert slide_id is not None
            self.noticed["no patient id: the slide counts as a patient, so one patient's slides may part"] += 1
            return slide_id
        text = read_id(table, row, column)
        patient = tcga_patient(text)
        if patient is not None and patient != text:
            self.noticed["case id is a longer TCGA barcode: cut to the patient, its first 12 characters"] += 1
        if patient is not None and from_slide is not None and patient.casefold() != from_slide.casefold():
            what = f"patient {patient} has slide '{slide_id}' of patient {from_slide}"
            raise table.fault(row, column, what, "Check whether rows were shifted against each other")
        return patient or text

    def site(self, row: Row, case_id: str) -> str | None:
        barcode = tcga_site(case_id)
        column = self.layout.site
        given = self.table.cell(row, column) if column is not None else ""
        if barcode is not None:
            if given and given != barcode:
                self.noticed[f"column '{column}' differs from the TCGA barcode's site, which is used"] += 1
            return barcode
        return given or None


def _read_slide_rows(reading: _Reading) -> list[Entry]:
    table, layout = reading.table, reading.layout
    assert layout.slide is not None
    entries = []
    for row in table.rows:
        slide_id = slide_id_of(read_id(table, row, layout.slide))
        case_id = reading.case_id(table, row, layout.case, slide_id)
        target = reading.target(row, slide_id)
        entries.append(Entry(table, row, layout.slide, case_id, slide_id, target, reading.site(row, case_id)))
    return entries


def _read_patients(reading: _Reading) -> dict[str, tuple[Row, Target | None]]:
    table, column = reading.table, reading.layout.case
    assert column is not None
    patients: dict[str, tuple[Row, Target | None]] = {}
    for row in table.rows:
        case_id = reading.case_id(table, row, column, None)
        if case_id in patients:
            what = f"patient '{case_id}' is already in row {patients[case_id][0].line}"
            raise table.fault(row, column, what, "Keep one row per patient")
        patients[case_id] = (row, reading.target(row, case_id))
    return patients


def _join_table(reading: _Reading, other: Table) -> list[Entry]:
    """Patients of the clinical table with the slides of a slide table; neither side loses a row uncounted."""
    patients = _read_patients(reading)
    links = _slide_table_columns(other)
    pairs = []
    for row in other.rows:
        slide_id = slide_id_of(read_id(other, row, links[1]))
        pairs.append((other, row, links[1], reading.case_id(other, row, links[0], slide_id), slide_id))
    return _joined(reading, patients, pairs)


def _join_names(reading: _Reading, slides: Iterable[str]) -> list[Entry]:
    patients = _read_patients(reading)
    anchor = reading.table.rows[0]
    pairs = []
    for name in slides:
        slide_id = slide_id_of(name)
        case_id = slide_id if slide_id in patients else tcga_patient(slide_id) or slide_id
        row = patients[case_id][0] if case_id in patients else anchor
        pairs.append((reading.table, row, reading.layout.case or "", case_id, slide_id))
    return _joined(reading, patients, pairs)


def _joined(
    reading: _Reading,
    patients: dict[str, tuple[Row, Target | None]],
    pairs: list[tuple[Table, Row, str, str, str]],
) -> list[Entry]:
    entries = []
    with_slides = set()
    for table, row, column, case_id, slide_id in pairs:
        if case_id not in patients:
            reading.excluded.append(Excluded(slide_id, "patient is not in the clinical table"))
            continue
        with_slides.add(case_id)
        home, target = patients[case_id]
        entries.append(Entry(table, row, column, case_id, slide_id, target, reading.site(home, case_id)))
    reading.excluded += [
        Excluded(case_id, "patient has no slide")
        for case_id, (_, target) in patients.items()
        if case_id not in with_slides and target is not None
    ]
    return entries


def _slide_table_columns(table: Table) -> tuple[str | None, str]:
    """The patient and slide columns of a table that has no target."""
    slide = next((name for name in SLIDE_COLUMNS if name in table), None)
    if slide is None:
        hint = f"Name the slide column one of {', '.join(SLIDE_COLUMNS)}"
        raise table.header_fault("the slide table has no slide column", "slide_id", hint)
    return next((name for name in CASE_COLUMNS if name in table), None), slide


def _check_choices(
    source: str,
    task: str | None,
    scored_by: str,
    event_coding: str | None,
    drop: Sequence[str],
    classes: Sequence[str] | None,
) -> None:
    checks: list[tuple[str, Sequence[str | None], list[str]]] = [
        ("task", [task], ["classification", "survival"]),
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


def _notes(reading: _Reading, given: EventCoding | None) -> list[str]:
    notes = [f"{text} ({count} rows)" for text, count in reading.noticed.items()]
    known = reading.layout.coding
    if given is not None and known is not None and given != known:
        notes.append(f"event coding declared as {given}, although column '{reading.layout.event}' usually is {known}")
    return notes
