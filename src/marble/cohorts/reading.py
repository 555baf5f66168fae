"""One pass over a cohort table: what every row says, and what was noticed on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from marble.cohorts.cohort import Excluded
from marble.cohorts.families import TableLayout, no_patients
from marble.cohorts.fields import (
    class_key,
    has_invisible,
    is_missing,
    read_event,
    read_id,
    read_label,
    read_time,
    read_value,
)
from marble.cohorts.spec import EventCoding, option
from marble.errors import TableError
from marble.identifiers import normal, slide_id_of, tcga_patient, tcga_site
from marble.pseudonyms import Pseudonyms
from marble.specs import unknown_choice
from marble.tabular import Row, Table
from marble.targets import SurvivalTime, Target

_LISTED = 20  # rows that a message names


@dataclass
class Reading:
    """A table, how it is to be read, and what reading it brought up.

    Args:
        coding: what 1 means in the event column.
        drop: kinds of rows to leave out and count, `missing` and `other`.
        classes: the only classes there are, if they were given.
        keep: missing values, as keys, that are classes here.
        case_is_slide: every slide is of another patient.
        pseudonyms: the ids of slides that the table calls by their files.
    """

    table: Table
    layout: TableLayout
    coding: EventCoding | None = None
    drop: tuple[str, ...] = ()
    classes: frozenset[str] | None = None
    keep: frozenset[str] = frozenset()
    case_is_slide: bool = False
    pseudonyms: Pseudonyms | None = None
    excluded: list[Excluded] = field(default_factory=list)
    noticed: Counter[str] = field(default_factory=Counter)
    missing: list[tuple[Row, str, str]] = field(default_factory=list)  # (row, column, name) without a target

    def target(self, row: Row, name: str) -> Target | None:
        """The target of a row, or None (counted) where the row is to be left out."""
        found, column = self._parse(row)
        text = self.table.cell(row, column)
        if found is None:
            self.missing.append((row, column, name))
            self.excluded.append(Excluded(name, f"no {column}" + (f": '{text[:40]}'" if text else ""), row.line))
        elif isinstance(found, str) and self.classes is not None and found not in self.classes:
            like = next((name for name in sorted(self.classes) if class_key(name) == class_key(found)), None)
            if like is not None:  # a spelling, not another class: to leave it out would lose rows that are meant
                what = f"class '{found}' is '{like}' in {option('classes')}"
                raise self.table.fault(row, column, what, "Write one class in one way")
            if "other" not in self.drop:
                what = unknown_choice("class", found, sorted(self.classes))
                hint = (
                    f"Add it to {option('classes')}, or leave such rows out with --drop other (`drop` in an experiment)"
                )
                raise self.table.fault(row, column, what, hint)
            self.excluded.append(Excluded(name, f"class {found} is not one of the classes", row.line))
            return None
        return found

    def check_missing(self) -> None:
        """Refuse, all rows at once, what has no target, unless such rows are to be left out."""
        if not self.missing or "missing" in self.drop:
            return
        row, column, name = self.missing[0]
        text = self.table.cell(row, column)
        what = f"no value for '{name}'" + (f" ('{text[:40]}' means missing)" if text else "")
        others = [str(other.line) for other, _, _ in self.missing[1:]]
        if others:
            more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
            what += f", nor in row{'' if len(others) == 1 else 's'} {', '.join(others[:_LISTED])}{more}"
        hint = "Fill it in, or leave such rows out with --drop missing (`drop` in an experiment)"
        if text and self.layout.label is not None:
            hint += f"; if it is a class, name it with {option('keep_as_class')}"
        raise self.table.fault(row, column, what, hint)

    def slide_id(self, table: Table, row: Row, column: str) -> str:
        """The slide of a row: the cell without folder and extension, or its pseudonym."""
        name = self._id(table, row, column)
        if self.pseudonyms is None:
            return slide_id_of(name)
        slide_id = self.pseudonyms.id_for(name)
        if slide_id is None:  # counted, and called by nothing that says whose it is
            self.noticed["slide is not in the table of pseudonyms"] += 1
        return slide_id or f"slide of row {row.line}"

    def case_id(self, table: Table, row: Row, column: str | None, slide_id: str | None) -> str:
        """The patient of a row: the cell, cut to the patient part of a TCGA barcode; or from the slide's barcode."""
        from_slide = None if slide_id is None else tcga_patient(slide_id)
        if column is None or (from_slide is not None and not table.cell(row, column)):
            if from_slide is not None:
                self.noticed["patient taken from the slide's TCGA barcode"] += 1
                return from_slide
            if slide_id is None or not self.case_is_slide:
                raise no_patients(table)
            return slide_id
        text = self._id(table, row, column)
        if is_missing(text):
            self.noticed[f"'{text}' is taken as the id of a patient"] += 1
        patient = tcga_patient(text)
        if patient is not None and patient != text:
            self.noticed["case id is a longer TCGA barcode: cut to the patient, its first 12 characters"] += 1
        if patient is not None and from_slide is not None and patient.casefold() != from_slide.casefold():
            what = f"patient {patient} has slide '{slide_id}' of patient {from_slide}"
            raise table.fault(row, column, what, "Check whether rows were shifted against each other")
        return patient or text

    def site(self, row: Row, case_id: str) -> str | None:
        """The hospital of a row; a TCGA barcode knows better than a column, so its site `NA` is a site."""
        barcode = tcga_site(case_id)
        column = self.layout.site
        given = normal(self.table.cell(row, column)) if column is not None else ""
        if barcode is not None:
            if given and given != barcode:
                self.noticed[f"column '{column}' differs from the TCGA barcode's site, which is used"] += 1
            return barcode
        if given and is_missing(given):
            self.noticed[f"'{given}' in column '{column}' means that the site is not known"] += 1
            return None
        return given or None

    def notes(self, given: EventCoding | None) -> list[str]:
        """What was noticed, with counts, and a declared coding that is not the format's."""
        notes = [f"{text} ({count} row{'' if count == 1 else 's'})" for text, count in self.noticed.items()]
        if self.case_is_slide:
            notes.append("every slide counts as a patient of its own, as was said")
        known = self.layout.coding
        if given is not None and known is not None and given != known:
            column = self.layout.event
            notes.append(f"event coding declared as {given}, although column '{column}' usually is {known}")
        return notes

    def _id(self, table: Table, row: Row, column: str) -> str:
        if has_invisible(table, row, column):
            self.noticed[f"invisible characters are left out of the ids in column '{column}'"] += 1
        return read_id(table, row, column)

    def _parse(self, row: Row) -> tuple[Target | None, str]:
        layout, table = self.layout, self.table
        if layout.label is not None:
            return read_label(table, row, layout.label, self.keep), layout.label
        if layout.target is not None:
            return read_value(table, row, layout.target), layout.target
        assert layout.time is not None
        assert layout.event is not None
        time = read_time(table, row, layout.time)
        event = read_event(table, row, layout.event, self.coding)
        if time is None or event is None:
            return None, layout.time if time is None else layout.event
        return SurvivalTime(time, event), layout.time


def contradicts_patients(table: Table, column: str) -> TableError:
    """The error for a table that has patients although every slide is said to be one."""
    what = f"the table has a patient column, '{column}', but every slide is said to be a patient"
    return table.header_fault(what, column, f"Leave out {option('case_is_slide')}, or remove the column")
