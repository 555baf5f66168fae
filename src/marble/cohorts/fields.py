"""From the text of a cell to an id, a class, a time or an event; each refusal names the cell."""

from __future__ import annotations

import math
import re

from marble.cohorts.families import EventCoding
from marble.tabular import Row, Table

#: What public tables write where a time or an event is not known. Ids are never compared with these.
MISSING = frozenset(
    {"", "na", "n/a", "#n/a", "nan", "null", "none", ".", "[not available]", "[not applicable]", "[unknown]",
     "[discrepancy]", "[completed]"}
)  # fmt: skip
_MISSING_LABEL = frozenset({"", "nan", "[not available]", "[not applicable]", "[unknown]", "[discrepancy]"})
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_EVENT_WORDS = {
    "dead": True, "deceased": True, "1:deceased": True, "event": True, "progressed": True, "recurred": True,
    "1:progression": True, "1:recurred/progressed": True, "1:dead with tumor": True,
    "alive": False, "living": False, "0:living": False, "censored": False, "0:censored": False,
    "0:diseasefree": False, "0:alive or dead tumor free": False,
}  # fmt: skip
_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_MAX_ID = 200


def read_id(table: Table, row: Row, column: str) -> str:
    """An id as the text it is, without surrounding blanks."""
    text = table.cell(row, column)
    if not text:
        raise table.fault(row, column, "the id is empty", "Fill it in, or remove the row")
    if text[0] in "=+-@":
        what = f"'{text[:40]}' starts like a spreadsheet formula"
        raise table.fault(row, column, what, "Give ids that start with a letter or a digit")
    if len(text) > _MAX_ID:
        what = f"an id of {len(text)} characters (at most {_MAX_ID})"
        raise table.fault(row, column, what, "Check that this is the id column")
    if not text.isprintable():
        raise table.fault(row, column, f"{text!r} has a line break or control character", "Remove it from the id")
    return text


def read_label(table: Table, row: Row, column: str) -> str | None:
    """A class name, or None where the table has none."""
    text = table.cell(row, column)
    if text.casefold() in _MISSING_LABEL:
        return None
    if text[0] in "=@":
        what = f"'{text[:40]}' starts like a spreadsheet formula"
        raise table.fault(row, column, what, "Give class names that start with a letter or a digit")
    if len(text) > _MAX_ID or not text.isprintable():
        raise table.fault(row, column, f"{text[:40]!r} is not a class name", "Check that this is the label column")
    return text


def read_time(table: Table, row: Row, column: str) -> float | None:
    """A time of at least 0, or None where the table has none."""
    text = table.cell(row, column)
    if text.casefold() in MISSING:
        return None
    if not _NUMBER.fullmatch(text):
        comma = re.fullmatch(r"[+-]?\d+,\d+", text)
        hint = "Write decimals with a point" if comma else "Give a number, or leave the cell empty if not known"
        raise table.fault(row, column, f"'{text[:40]}' is not a time", hint)
    value = float(text)
    if not math.isfinite(value):
        raise table.fault(row, column, f"'{text[:40]}' is too large for a time", "Check the number")
    if value < 0:
        what = f"the time {text} is negative"
        raise table.fault(row, column, what, "Times count from diagnosis: correct it or leave the row out")
    return value


def read_event(table: Table, row: Row, column: str, coding: EventCoding | None) -> bool | None:
    """Whether the event happened, or None where the table does not say. 0 and 1 need a coding, words do not."""
    text = table.cell(row, column)
    key = re.sub(r"\s+", " ", text.casefold())
    if key in _EVENT_WORDS:
        return _EVENT_WORDS[key]
    if key in MISSING:
        return None
    if key not in _FLAGS:
        what = f"'{text[:40]}' is not an event: 0, 1, or a word such as dead or alive"
        raise table.fault(row, column, what, "Correct the cell, or leave it empty if not known")
    if coding is None:
        what = f"what {text} means in this column is not known from its name"
        hint = 'Say event_coding="1=event" or event_coding="1=censored"; a wrong guess would turn every result around'
        raise table.fault(row, column, what, hint)
    return _FLAGS[key] == (coding == "1=event")
