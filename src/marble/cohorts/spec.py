"""`TableSpec`: what a user says about a cohort table, where its format does not say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marble.cohorts.cohort import ScoredBy
from marble.targets import TargetKind

EventCoding = Literal["1=event", "1=censored"]
Drop = Literal["missing", "other"]


@dataclass(frozen=True)
class TableSpec:
    """Which column is what, which rows count, what is predicted; whatever is None is taken from the format.

    Args:
        task: what to predict, where the table has both a label and a survival time; a number must be asked for.
        case: the column of the patient.
        case_is_slide: every slide is of another patient; without this a table needs a patient column.
        slide: the column of the slide.
        pseudonyms: the table that `marble extract --pseudonyms` wrote: this one calls slides by their files, and they
            are known by the ids there.
        site: the column of the hospital; TCGA barcodes say it themselves.
        slide_table: a second table with patient and slide columns, for clinical tables without slides.
        label: the column of the class.
        classes: the classes and their order; default: all that occur, sorted.
        keep_as_class: words such as `None` or `unknown` that are a class here; otherwise they mean a missing value.
        target: the column of the number, for regression.
        time: the column of the time under observation.
        event: the column of the event.
        event_coding: what 1 means in the event column; needed unless the format fixes it or the cells are words.
        scored_by: "slide" allows slides of one patient to have different targets.
        drop: leave out, and count, rows without a target ("missing") or of a class not in `classes` ("other").
    """

    task: TargetKind | None = None
    case: str | None = None
    case_is_slide: bool = False
    slide: str | None = None
    pseudonyms: str | Path | None = None
    site: str | None = None
    slide_table: str | Path | None = None
    label: str | None = None
    classes: Sequence[str] | None = None
    keep_as_class: Sequence[str] = ()
    target: str | None = None
    time: str | None = None
    event: str | None = None
    event_coding: EventCoding | None = None
    scored_by: ScoredBy = "case"
    drop: Sequence[Drop] = ()


def option(key: str) -> str:
    """How to name an option of the reader so that whoever reads it can set it: as a flag, and as a key."""
    return f"--{key.replace('_', '-')} (`{key}` in an experiment)"
