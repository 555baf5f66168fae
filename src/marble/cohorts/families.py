"""Which columns of a table mean what: the layouts that public tools and portals write.

| family | patient, slide | target |
|---|---|---|
| marble, CLAM | `case_id`, `slide_id` | `label`, or `time` and `event` (1 = event) |
| MCAT and its heirs | `case_id`, `slide_id` | `survival_months`, `censorship` (1 = censored); `oncotree_code` |
| Patho-Bench | `case_id`, `slide_id` | one task column, or `X_days` and `X_event` (1 = event); `fold_0` ... |
| STAMP | `PATIENT`; `PATIENT`, `FILENAME` in a slide table | named by the user |
| PathBench | `patient`, `slide` | `category`, or `time` and `event` (1 = event) |
| PANDA | `image_id` (no patient) | `isup_grade` |
| TCGA CDR, Xena | `bcr_patient_barcode`, `_PATIENT` | `OS.time`, `OS` (1 = event); DSS, DFI, PFI likewise |
| cBioPortal | `PATIENT_ID` | `OS_MONTHS`, `OS_STATUS` (`1:DECEASED`) |

MCAT's heirs are PORPOISE, SurvPath, MambaMIL and 2DMamba.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from marble.cohorts.cohort import TaskName
from marble.errors import TableError
from marble.tabular import Table

EventCoding = Literal["1=event", "1=censored"]

CASE_COLUMNS = (
    "case_id", "patient_id", "PATIENT", "patient", "PATIENT_ID", "Patient ID", "bcr_patient_barcode", "_PATIENT",
)  # fmt: skip
SLIDE_COLUMNS = ("slide_id", "FILENAME", "slide", "image_id", "File Name", "filename", "wsi")
SITE_COLUMNS = ("site", "data_provider", "center", "centre")
LABEL_COLUMNS = ("label", "category", "isup_grade", "Diagnosis")
_SURVIVAL_PAIRS = (
    ("survival_months", "censorship"),
    ("time", "event"),
    ("OS.time", "OS"),
    ("OS_MONTHS", "OS_STATUS"),
)
_FOLD = re.compile(r"fold_\d+")


@dataclass(frozen=True)
class TableLayout:
    """The columns of one table by meaning; None where the table has no such column."""

    task: TaskName
    case: str | None
    slide: str | None
    site: str | None
    label: str | None = None
    time: str | None = None
    event: str | None = None
    coding: EventCoding | None = None  # what 1 means in the event column, where the format fixes it


@dataclass(frozen=True)
class ColumnChoices:
    """What the user said about the table; whatever is None is taken from the format."""

    task: TaskName | None = None
    case: str | None = None
    slide: str | None = None
    site: str | None = None
    label: str | None = None
    time: str | None = None
    event: str | None = None


def find_layout(table: Table, choices: ColumnChoices) -> TableLayout:
    """Decide the meaning of the columns from what the user said and from the format; never guess between two."""
    case = _given_or_first(table, choices.case, CASE_COLUMNS)
    slide = _given_or_first(table, choices.slide, SLIDE_COLUMNS)
    site = _given_or_first(table, choices.site, SITE_COLUMNS)
    if case is None and slide is None and {"train", "val"} <= set(table.columns):
        hint = "Read it with read_splits, and give the table of labels or survival times as the cohort"
        raise table.header_fault("this is a split file, not a cohort table", "train", hint)
    if case is None and slide is None:
        what = "neither a patient nor a slide column is known by its name"
        hint = f"Say which it is with case= or slide=; columns here: {_listing(table)}"
        raise table.header_fault(what, "case_id", hint)
    if _task(table, choices) == "classification":
        return TableLayout("classification", case, slide, site, label=_label_column(table, choices, case, slide))
    time, event = _survival_columns(table, choices)
    return TableLayout("survival", case, slide, site, time=time, event=event, coding=known_coding(table, event))


def fold_columns(table: Table) -> tuple[str, ...]:
    """Patho-Bench's fold columns, in order."""
    return tuple(
        sorted((name for name in table.columns if _FOLD.fullmatch(name)), key=lambda name: int(name.split("_")[1]))
    )


def known_coding(table: Table, event: str) -> EventCoding | None:
    """What 1 means in this event column, where the column's name and its company fix it."""
    if event == "censorship" or event.startswith("censorship_"):
        return "1=censored"
    if event == "event" or (event.endswith("_event") and f"{event.removesuffix('_event')}_days" in table):
        return "1=event"
    if f"{event}.time" in table:
        return "1=event"
    return None


def _task(table: Table, choices: ColumnChoices) -> TaskName:
    if choices.task is not None:
        return choices.task
    if choices.time is not None or choices.event is not None:
        return "survival"
    if choices.label is not None:
        return "classification"
    survival = bool(_survival_pairs(table))
    if survival and "label" in table:
        what = "the table has both a label and a survival time"
        raise table.header_fault(what, "label", "Say which one to predict with task=")
    return "survival" if survival else "classification"


def _label_column(table: Table, choices: ColumnChoices, case: str | None, slide: str | None) -> str:
    if choices.label is not None:
        return table.require(choices.label, "Give the label's column with label=")
    found = _given_or_first(table, None, LABEL_COLUMNS)
    if found is None and _survival_pairs(table) and "oncotree_code" in table:
        found = "oncotree_code"  # the MCAT family keeps the tumour type beside the survival time
    if found is None and (folds := fold_columns(table)):
        others = [name for name in table.columns if name not in (case, slide, *folds)]
        found = others[0] if len(others) == 1 else None
    if found is None:
        hint = f"Give the label's column with label=; columns here: {_listing(table)}"
        raise table.header_fault("no column is known as the label", "label", hint)
    return found


def _survival_columns(table: Table, choices: ColumnChoices) -> tuple[str, str]:
    if choices.time is not None and choices.event is not None:
        hint = "Give the columns with time= and event="
        return table.require(choices.time, hint), table.require(choices.event, hint)
    if choices.time is not None or choices.event is not None:
        given = choices.time or choices.event or ""
        raise table.header_fault("only one of time and event is given", given, "Give both time= and event=")
    pairs = _survival_pairs(table)
    if len(pairs) != 1:
        what = "no survival time and event are known by name" if not pairs else "several survival outcomes"
        known = "; ".join(f"time={time} event={event}" for time, event in pairs) or _listing(table)
        raise table.header_fault(what, "time", f"Give time= and event=; here: {known}")
    return pairs[0]


def _survival_pairs(table: Table) -> list[tuple[str, str]]:
    known = [(time, event) for time, event in _SURVIVAL_PAIRS if time in table and event in table]
    by_suffix = [
        (f"{name.removesuffix('_event')}_days", name)
        for name in table.columns
        if name.endswith("_event") and f"{name.removesuffix('_event')}_days" in table
    ]
    return known + by_suffix


def _given_or_first(table: Table, given: str | None, known: tuple[str, ...]) -> str | None:
    if given is not None:
        return table.require(given)
    return next((name for name in known if name in table), None)


def _listing(table: Table) -> str:
    shown = [name for name in table.columns if name][:20]
    more = len(table.columns) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def no_slides(table: Table) -> TableError:
    """The error for a clinical table that is given without any list of slides."""
    what = "the table lists patients but no slides"
    hint = "Add the slides with slide_table= (a table of patient and slide) or slides= (their names)"
    return table.header_fault(what, "slide_id", hint)
