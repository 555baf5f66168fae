"""From the text of a cell to an id, a class, a time, an event or a number; each refusal names the cell."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from marble.cohorts.spec import EventCoding, option
from marble.identifiers import is_invisible, normal
from marble.tabular import Row, Table

#: What tables write where something is not known, in lower case and without brackets. Ids are never among these.
MISSING = frozenset(
    {"", "-", "--", "---", ".", "..", "...", "?", "??", "???", "na", "n/a", "n.a.", "n.a", "nan", "nat", "null", "nil",
     "none", "unknown", "unk", "missing", "blank", "no data", "not available", "not applicable", "not reported",
     "not known", "not specified", "discrepancy", "completed", "unbekannt", "k.a.", "k. a.", "keine angabe",
     "#n/a", "#na", "#value!", "#ref!", "#div/0!", "#name?", "#num!", "#null!",
     "#nv", "#wert!", "#bezug!", "#zahl!", "#valeur!", "#nombre!", "#nom?", "#nul!"}
)  # fmt: skip
EVENT_WORDS = {
    "dead": True, "deceased": True, "1:deceased": True, "event": True, "progressed": True, "recurred": True,
    "1:progression": True, "1:recurred/progressed": True, "1:dead with tumor": True,
    "alive": False, "living": False, "0:living": False, "censored": False, "0:censored": False,
    "0:diseasefree": False, "0:alive or dead tumor free": False,
}  # fmt: skip
#: what 0 and 1 may look like; spreadsheets write true and false in the user's language
EVENT_FLAGS = {
    "1": True, "1.0": True, "true": True, "wahr": True, "vrai": True,
    "0": False, "0.0": False, "false": False, "falsch": False, "faux": False,
}  # fmt: skip
_BRACKETS = {"[": "]", "(": ")", "<": ">"}
_SHORTENED = re.compile(r"\d(?:[.,]\d+)?[eE]\+\d{2,3}")  # as Excel (1.23E+12), pandas and R (1e+05) save long numbers
_MAX_ID = 200
#: 2015-03-12, 12.3.15 or 3/12/2015, with or without a time of day; and 20150312, which would pass for a number
_DATE = re.compile(
    r"(\d{4}|\d{1,2})([-./])\d{1,2}\2(\d{4}|\d{1,2})([T ].*)?"
    r"|(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"
)


def missing_key(text: str) -> str:
    """The text as it would stand in `MISSING`: lower case, one kind of dash and blank, no brackets around it."""
    plain = re.sub("[\u2010-\u2015\u2212]", "-", " ".join(normal(text).casefold().split()))
    if len(plain) > 1 and _BRACKETS.get(plain[0]) == plain[-1]:
        plain = plain[1:-1].strip()
    return plain


def is_missing(text: str) -> bool:
    """Whether a cell says that something is not known."""
    return missing_key(text) in MISSING


def read_id(table: Table, row: Row, column: str) -> str:
    """An id as the text it is, in normal form (see :mod:`marble.identifiers`)."""
    text = normal(table.cell(row, column))
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
    if _SHORTENED.fullmatch(text):
        what = f"'{text}' is an id that a spreadsheet has shortened as a number, so different ids may have become one"
        raise table.fault(row, column, what, "Take the ids from where they came from, into a column formatted as text")
    return text


def has_invisible(table: Table, row: Row, column: str) -> bool:
    """Whether a cell holds characters that nobody sees and that `read_id` leaves out."""
    text = table.cell(row, column)
    return not text.isascii() and any(map(is_invisible, text))


def read_label(table: Table, row: Row, column: str, keep: Collection[str] = ()) -> str | None:
    """A class name, or None where the table has none; `keep` are missing values (as keys) that are classes here."""
    text = normal(table.cell(row, column))
    if is_missing(text) and missing_key(text) not in keep:
        return None
    if text[0] in "=@":
        what = f"'{text[:40]}' starts like a spreadsheet formula"
        raise table.fault(row, column, what, "Give class names that start with a letter or a digit")
    if len(text) > _MAX_ID or not text.isprintable():
        raise table.fault(row, column, f"{text[:40]!r} is not a class name", "Check that this is the label column")
    return text


def class_key(name: str) -> str:
    """Equal for class names that differ only in case, blanks or a `.0` that a spreadsheet added."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", " ".join(name.casefold().split()))


def read_value(table: Table, row: Row, column: str, kind: str = "number") -> float | None:
    """A finite number, or None where the table has none."""
    text = table.cell(row, column)
    if is_missing(text):
        return None
    value = table.number(row, column)
    if value is None:
        comma = re.fullmatch(r"[+-]?\d+,\d+", text)
        hint = "Write decimals with a point" if comma else "Give a number, or leave the cell empty if not known"
        raise table.fault(row, column, f"'{text[:40]}' is not a {kind}", hint)
    if not math.isfinite(value):
        raise table.fault(row, column, f"'{text[:40]}' is too large for a {kind}", "Check the number")
    return value


def read_time(table: Table, row: Row, column: str) -> float | None:
    """A time of at least 0, or None where the table has none."""
    text = table.cell(row, column).strip()
    if _DATE.fullmatch(text):
        hint = "Give the days or months from diagnosis to the event or to the last contact"
        raise table.fault(row, column, f"'{text[:40]}' is a date, not a time", hint)
    value = read_value(table, row, column, "time")
    if value is not None and value < 0:
        what = f"the time {table.cell(row, column)} is negative"
        raise table.fault(row, column, what, "Times count from diagnosis: correct it or leave the row out")
    return value


def read_event(table: Table, row: Row, column: str, coding: EventCoding | None) -> bool | None:
    """Whether the event happened, or None where the table does not say. 0 and 1 need a coding, words do not."""
    text = normal(table.cell(row, column))
    key = re.sub(r"\s+", " ", text.casefold())
    if key in EVENT_WORDS:
        return EVENT_WORDS[key]
    if is_missing(text):
        return None
    key = re.sub(r"([01])[.,]0+", r"\1", key)
    if key not in EVENT_FLAGS:
        what = f"'{text[:40]}' is not an event: 0, 1, or a word such as dead or alive"
        raise table.fault(row, column, what, "Correct the cell, or leave it empty if not known")
    if coding is None:
        what = f"what {text} means in this column is not known from its name"
        hint = f"Say 1=event or 1=censored with {option('event_coding')}; a wrong guess would turn every result around"
        raise table.fault(row, column, what, hint)
    return EVENT_FLAGS[key] == (coding == "1=event")
