"""Which columns of a table mean what: the layouts that public tools and portals write.

| family | patient, slide | target |
|---|---|---|
| marble, CLAM | `case_id`, `slide_id` | `label`, or `time` and `event` (1 = event), or `target` (a number) |
| MCAT and its heirs | `case_id`, `slide_id` | `survival_months`, `censorship` (1 = censored); `oncotree_code` |
| Patho-Bench | `case_id`, `slide_id` | one task column, or `X_days` and `X_event` (1 = event); `fold_0` ... |
| STAMP | `PATIENT`; `PATIENT`, `FILENAME` in a slide table | named by the user |
| PathBench | `patient`, `slide` | `category`, or `time` and `event` (1 = event), or `value` (a number) |
| PANDA | `image_id` (no patient) | `isup_grade` |
| TCGA CDR, Xena | `bcr_patient_barcode`, `_PATIENT` | `OS.time`, `OS` (1 = event); DSS, DFI, PFI likewise |
| cBioPortal | `PATIENT_ID` | `OS_MONTHS`, `OS_STATUS` (`1:DECEASED`) |

MCAT's heirs are PORPOISE, SurvPath, MambaMIL and 2DMamba. Names are compared without case, blanks, `_`, `-` and `.`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from marble.cohorts.spec import EventCoding, TableSpec, option
from marble.errors import TableError
from marble.identifiers import slide_id_of, spelling_key
from marble.tabular import Table, column_key
from marble.targets import TargetKind

#: of several that a table has the first is taken, if the others agree with it
CASE_COLUMNS = (
    "case_id", "patient_id", "patient", "case", "subject_id", "subject", "participant_id", "bcr_patient_barcode",
    "case_submitter_id",
)  # fmt: skip
SLIDE_COLUMNS = ("slide_id", "filename", "slide", "image_id", "wsi", "slide_name", "file")
SITE_COLUMNS = ("site", "data_provider", "center", "centre", "hospital", "institution")
LABEL_COLUMNS = ("label", "category", "isup_grade", "diagnosis", "class")
TARGET_COLUMNS = ("target", "value")
SURVIVAL_PAIRS = (
    ("survival_months", "censorship"),
    ("time", "event"),
    ("OS.time", "OS"),
    ("OS_MONTHS", "OS_STATUS"),
    ("OS_time", "OS_event"),
)
_FOLD = re.compile(r"fold_\d+")


@dataclass(frozen=True)
class TableLayout:
    """The columns of one table by meaning; None where the table has no such column."""

    task: TargetKind
    case: str | None
    slide: str | None
    site: str | None
    label: str | None = None
    time: str | None = None
    event: str | None = None
    target: str | None = None
    coding: EventCoding | None = None  # what 1 means in the event column, where the format fixes it

    @property
    def target_column(self) -> str:
        """The column to name where a target is at fault."""
        return self.label or self.time or self.target or ""


def find_layout(table: Table, choices: TableSpec) -> TableLayout:
    """Decide the meaning of the columns from what the user said and from the format; never guess between two."""
    case = table.require(choices.case) if choices.case is not None else case_column(table)
    slide = table.require(choices.slide) if choices.slide is not None else slide_column(table)
    site = table.require(choices.site) if choices.site is not None else _first(table, SITE_COLUMNS)
    if case is None and slide is None and {"train", "val"} <= set(table.columns):
        hint = "Audit it with `marble split --check`, and give the table of labels or survival times as the cohort"
        raise table.header_fault("this is a split file, not a cohort table", "train", hint)
    if case is None and slide is None:
        what = "neither a patient nor a slide column is known by its name"
        hint = f"Say which it is with {option('case')} or {option('slide')}; columns here: {listing(table)}"
        raise table.header_fault(what, "case_id", hint)
    task = _task(table, choices)
    if task == "classification":
        return TableLayout(task, case, slide, site, label=_label_column(table, choices, case, slide))
    if task == "regression":
        return TableLayout(task, case, slide, site, target=_value_column(table, choices))
    time, event = _survival_columns(table, choices)
    return TableLayout(task, case, slide, site, time=time, event=event, coding=known_coding(table, event))


def case_column(table: Table) -> str | None:
    """The patient column that is known by its name; two that disagree are an error."""
    return _agreed(table, CASE_COLUMNS, "patients", "case", spelling_key)


def slide_column(table: Table) -> str | None:
    """The slide column that is known by its name; two that disagree are an error."""
    return _agreed(table, SLIDE_COLUMNS, "slides", "slide", slide_id_of)


def fold_columns(table: Table) -> tuple[str, ...]:
    """Patho-Bench's fold columns, in order."""
    found = (name for name in table.columns if _FOLD.fullmatch(name.casefold()))
    return tuple(sorted(found, key=lambda name: int(name.split("_")[1])))


def known_coding(table: Table, event: str) -> EventCoding | None:
    """What 1 means in this event column, where the column's name and its company fix it."""
    key = column_key(event)
    if key.startswith("censorship"):
        return "1=censored"
    if key in ("event", "osevent") or (key.endswith("event") and table.named(f"{key.removesuffix('event')}days")):
        return "1=event"
    if table.named(f"{key}time"):
        return "1=event"
    return None


def listing(table: Table) -> str:
    """The names of the columns, for a message."""
    shown = [name for name in table.columns if name][:20]
    more = len(table.columns) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def no_slides(table: Table) -> TableError:
    """The error for a clinical table that is given without any list of slides."""
    what = f"the table lists patients but no slides; columns here: {listing(table)}"
    hint = f"Name the slide column with {option('slide')}, or give a second table with {option('slide_table')}"
    return table.header_fault(what, "slide_id", hint)


def no_patients(table: Table) -> TableError:
    """The error for a table without a patient column, whose slides could not be kept together."""
    what = f"no patient column, so slides of one patient could part; columns here: {listing(table)}"
    hint = f"Name it with {option('case')}; or say {option('case_is_slide')} if every slide is of another patient"
    return table.header_fault(what, "case_id", hint)


def _task(table: Table, choices: TableSpec) -> TargetKind:
    if choices.task is not None:
        return choices.task
    if choices.target is not None:
        return "regression"
    if choices.time is not None or choices.event is not None:
        return "survival"
    if choices.label is not None:
        return "classification"
    survival = bool(_survival_pairs(table))
    if survival and (label := table.named("label")):
        what = "the table has both a label and a survival time"
        raise table.header_fault(what, label, f"Say which one to predict with {option('task')}")
    return "survival" if survival else "classification"


def _label_column(table: Table, choices: TableSpec, case: str | None, slide: str | None) -> str:
    if choices.label is not None:
        return table.require(choices.label, f"Give the label's column with {option('label')}")
    found = _first(table, LABEL_COLUMNS)
    if found is None and _survival_pairs(table):
        found = table.named("oncotree_code")  # the MCAT family keeps the tumour type beside the survival time
    if found is None and (folds := fold_columns(table)):
        others = [name for name in table.columns if name not in (case, slide, *folds)]
        found = others[0] if len(others) == 1 else None
    if found is None:
        hint = f"Give the label's column with {option('label')}; columns here: {listing(table)}"
        if number := _first(table, TARGET_COLUMNS):
            hint += f"; to predict the numbers of '{number}' say --task regression (`task` in an experiment)"
        raise table.header_fault("no column is known as the label", "label", hint)
    return found


def _value_column(table: Table, choices: TableSpec) -> str:
    hint = f"Give the column of the number to predict with {option('target')}; columns here: {listing(table)}"
    if choices.target is not None:
        return table.require(choices.target, hint)
    found = _first(table, TARGET_COLUMNS)
    if found is None:
        raise table.header_fault("no column is known as the number to predict", "target", hint)
    return found


def _survival_columns(table: Table, choices: TableSpec) -> tuple[str, str]:
    if choices.time is not None and choices.event is not None:
        hint = f"Give the columns with {option('time')} and {option('event')}"
        return table.require(choices.time, hint), table.require(choices.event, hint)
    if choices.time is not None or choices.event is not None:
        given = choices.time or choices.event or ""
        raise table.header_fault(
            "only one of time and event is given", given, f"Give both {option('time')} and {option('event')}"
        )
    pairs = _survival_pairs(table)
    if len(pairs) != 1:
        what = "no survival time and event are known by name" if not pairs else "several survival outcomes"
        known = "; ".join(f"'{time}' and '{event}'" for time, event in pairs) or listing(table)
        raise table.header_fault(what, "time", f"Give {option('time')} and {option('event')}; here: {known}")
    return pairs[0]


def _survival_pairs(table: Table) -> list[tuple[str, str]]:
    names = [*SURVIVAL_PAIRS, *((_days_beside(name), name) for name in table.columns)]
    found = [(table.named(time), table.named(event)) for time, event in names if time]
    return list(dict.fromkeys((time, event) for time, event in found if time is not None and event is not None))


def _days_beside(event: str) -> str:
    """Patho-Bench's `OS_days` for `OS_event`; nothing for other names."""
    stem = column_key(event).removesuffix("event")
    return f"{stem}days" if stem and stem != column_key(event) else ""


def _first(table: Table, known: tuple[str, ...]) -> str | None:
    return next((column for name in known if (column := table.named(name)) is not None), None)


def _agreed(table: Table, known: tuple[str, ...], things: str, key: str, same: Callable[[str], str]) -> str | None:
    """The first known column that the table has, if all others that it has say the same in every row."""
    found = [column for name in known if (column := table.named(name)) is not None]
    for other in found[1:]:
        for row in table.rows:
            one, two = table.cell(row, found[0]), table.cell(row, other)
            if one and two and same(one) != same(two):
                what = f"columns '{found[0]}' and '{other}' both name {things} and differ here: '{one}', '{two}'"
                raise table.fault(row, other, what, f"Say which one to use with {option(key)}")
    return found[0] if found else None
