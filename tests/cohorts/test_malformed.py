"""Tables with a fault: the error names the file, the row and the column, and the next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from marble.cohorts import read_cohort
from marble.errors import TableError

LABELS = "case_id,slide_id,label\n"
TIMES = "case_id,slide_id,time,event\n"
MCAT = "case_id,slide_id,survival_months,censorship\n"


class Fault(NamedTuple):
    name: str
    data: str | bytes
    row: int
    column: str
    said: str
    options: dict[str, Any] = {}  # noqa: RUF012


def bad_time(text: str, said: str = "is not a time") -> Fault:
    return Fault(f"time {text!r}", f"{TIMES}p,s,5,1\nq,t,{text},0\n", 3, "time", said)


def bad_event(text: str) -> Fault:
    return Fault(f"event {text!r}", f"{TIMES}p,s,5,1\nq,t,5,{text}\n", 3, "event", "is not an event")


def bad_id(text: str, said: str) -> Fault:
    return Fault(f"slide id {text[:12]!r}", f"{LABELS}p,s,a\nq,{text},b\n", 3, "slide_id", said)


FAULTS = [
    # ids that a spreadsheet took for numbers, of which several may have become one
    bad_id("1.23E+12", "a spreadsheet has shortened as a number"),
    bad_id('"1,23E+12"', "a spreadsheet has shortened as a number"),
    bad_id("5E+05", "a spreadsheet has shortened as a number"),
    bad_id("1.2345678901234568e+17", "a spreadsheet has shortened as a number"),
    # the file as text
    Fault("empty", "", 1, "(all)", "empty"),
    Fault("only blank lines", "\n\n\n", 1, "(all)", "empty"),
    Fault("only a header", LABELS, 1, "case_id", "no rows"),
    Fault("latin-1", LABELS.encode() + "p,s,Gefäß\n".encode("latin-1"), 2, "label", "Latin-1"),
    Fault("latin-1 in an id", LABELS.encode() + b"p,s,a\nM\xfcller,t,b\n", 3, "case_id", "0xfc"),
    Fault("latin-1 with semicolons", b"case_id;slide_id;label\np;s\xe9;a\n", 2, "slide_id", "0xe9"),
    Fault("NUL", LABELS + "p,s,a\nq,\0,b\n", 3, "slide_id", "NUL"),
    Fault("huge cell", LABELS + f"p,s,a\nq,t,{'x' * 120_000}\n", 3, "label", "120,000 characters"),
    Fault("a cell of a million characters", LABELS + f"p,s,a\nq,t,{'x' * 10**6}\n", 3, "label", "not valid CSV"),
    Fault("huge cell first", LABELS + f"{'x' * 120_000},s,a\n", 2, "case_id", "120,000"),
    Fault("open quote", LABELS + 'p,s,a\nq,"t,b\nr,u,a\n', 3, "slide_id", "not valid CSV"),
    Fault("text after a quote", LABELS + 'p,s,a\nq,"t"x,b\n', 3, "slide_id", "not valid CSV"),
    # the header
    Fault("column twice", "case_id,slide_id,label,label\np,s,a,b\n", 1, "label", "twice"),
    Fault("column without a name", "case_id,slide_id,,label\np,s,x,a\n", 1, "number 3", "without a name"),
    Fault("last column without a name", "case_id,slide_id,label,\np,s,a,\nq,t,b,x\n", 1, "number 4", "without a name"),
    Fault("no ids", "name,label\np,a\n", 1, "case_id", "neither a patient nor a slide"),
    Fault("no label", "case_id,slide_id,age\np,s,5\n", 1, "label", "no column is known as the label"),
    Fault("wrong label", LABELS + "p,s,a\n", 1, "lable", "did you mean 'label'", {"label": "lable"}),
    Fault("wrong case column", LABELS + "p,s,a\n", 1, "patient", "unknown column", {"case": "patient"}),
    Fault("wrong slide column", LABELS + "p,s,a\n", 1, "slides_id", "did you mean 'slide_id'", {"slide": "slides_id"}),
    Fault("wrong time column", TIMES + "p,s,1,1\n", 1, "tme", "did you mean 'time'", {"time": "tme", "event": "event"}),
    Fault("time without event", TIMES + "p,s,1,1\n", 1, "time", "only one of time and event", {"time": "time"}),
    Fault("no survival columns", LABELS + "p,s,a\n", 1, "time", "no survival time", {"task": "survival"}),
    Fault("label and time", "slide_id,label,time,event\ns,a,1,1\n", 1, "label", "both a label and a survival time"),
    Fault("two outcomes", "slide_id,A_days,A_event,B_days,B_event\ns,1,1,1,1\n", 1, "time", "several survival"),
    Fault("a split file", ",train,val,test\n0,a,b,c\n", 1, "train", "split file"),
    Fault("patients without slides", "PATIENT,label\np,a\n", 1, "slide_id", "no slides"),
    # the rows
    Fault("row too short", LABELS + "p,s,a\nq,t\n", 3, "label", "2 cells, the header 3"),
    Fault("row too long", LABELS + "p,s,a\nq,t,b,c\n", 3, "label (and beyond)", "4 cells"),
    Fault("unquoted comma", LABELS + "p,s,a\nDoe, J,t,b\n", 3, "label (and beyond)", "4 cells"),
    Fault("row after a row of separators", LABELS + "p,s,a\n,,\n,t,b\n", 4, "case_id", "id is empty"),
    Fault("row after a blank line", LABELS + "p,s,a\n\nq,t\n", 4, "label", "2 cells"),
    Fault("row after a long cell", LABELS + 'p,s,"a\n"\nq,t\n', 4, "label", "2 cells"),
    # ids
    Fault("no case id", LABELS + "p,s,a\n,t,b\n", 3, "case_id", "id is empty"),
    Fault("blank case id", LABELS + "p,s,a\n  ,t,b\n", 3, "case_id", "id is empty"),
    bad_id("", "id is empty"),
    bad_id("=HYPERLINK(1)", "formula"),
    bad_id("+1", "formula"),
    bad_id("@x", "formula"),
    bad_id("-1", "formula"),
    bad_id('"a\nb"', "line break"),
    bad_id("x" * 300, "300 characters"),
    bad_id("s", "already in row 2"),
    bad_id("s.svs", "already in row 2"),
    bad_id("folder/s.h5", "already in row 2"),
    Fault("identical rows", LABELS + "p,s,a\nq,t,b\np,s,a\n", 4, "slide_id", "an identical row"),
    Fault("a patient in capitals", LABELS + "p1,s,a\nP1,t,a\nq,u,b\n", 3, "slide_id", "'P1' is 'p1' in row 2"),
    Fault(
        "rows shifted",
        LABELS + "TCGA-AA-0001,TCGA-AA-0001-01Z,a\nTCGA-AA-0002,TCGA-AA-0003-01Z,b\n",
        3, "case_id", "of patient TCGA-AA-0003",
    ),
    # labels
    Fault("no label in a row", LABELS + "p,s,a\nq,t,\n", 3, "label", "no value for 't'"),
    Fault("nan label", LABELS + "p,s,a\nq,t,nan\n", 3, "label", "no value"),
    Fault("formula label", LABELS + "p,s,a\nq,t,=1\n", 3, "label", "formula"),
    Fault("label in two cases", LABELS + "p,s,LUAD\nq,t,luad\n", 3, "label", "is 'LUAD' in row 2"),
    Fault("label 1 and 1.0", LABELS + "p,s,1\nq,t,1.0\n", 3, "label", "is '1' in row 2"),
    Fault("long label", LABELS + f"p,s,a\nq,t,{'y' * 201}\n", 3, "label", "not a class name"),
    Fault("one class", LABELS + "p,s,a\nq,t,a\n", 1, "label", "only one class, 'a'"),
    Fault("too many classes", LABELS + "".join(f"p{i},s{i},l{i}\n" for i in range(101)), 1, "label", "101 different"),
    Fault("undeclared class", LABELS + "p,s,a\nq,t,c\n", 3, "label", "unknown class 'c'", {"classes": ("a", "b")}),
    Fault("two labels of a patient", LABELS + "p,s,a\np,t,b\n", 3, "label", "class 'a' in row 2"),
    # times
    bad_time("-1", "negative"),
    *(bad_time(date, "is a date, not a time") for date in ("2015-03-12", "12.3.2015", "3/12/15", "20150312")),
    bad_time("2015-03-12 00:00:00", "is a date, not a time"),
    bad_time("-0.5", "negative"),
    bad_time("inf"),
    bad_time("1_000"),
    bad_time("0x10"),
    bad_time("twelve"),
    bad_time('"12,5"'),
    bad_time("1e999", "too large"),
    bad_time("", "no value"),
    bad_time("nan", "no value"),
    bad_time("NA", "no value"),
    bad_time("[Not Available]", "no value"),
    Fault("two times of a patient", TIMES + "p,s,1,1\np,t,2,1\n", 3, "time", "time 1, event in row 2"),
    # events
    bad_event("2"),
    bad_event("-1"),
    bad_event("0.5"),
    bad_event("yes"),
    bad_event("=1"),
    Fault("no event value", TIMES + "p,s,1,1\nq,t,1,\n", 3, "event", "no value"),
    Fault("two events of a patient", TIMES + "p,s,1,1\np,t,1,0\n", 3, "time", "event in row 2"),
    Fault("no events at all", TIMES + "p,s,1,0\nq,t,2,0\n", 1, "event", "no event in 2 cases"),
    Fault("all censored", MCAT + "p,s,1,1\nq,t,2,1\n", 1, "censorship", "the other way round"),
    Fault("censorship 2", MCAT + "p,s,1,1\nq,t,2,2.0\n", 3, "censorship", "is not an event"),
    Fault(
        "status without a coding", "case_id,slide_id,months,status\np,s,1,1\nq,t,2,0\n", 2, "status", "event_coding",
        {"time": "months", "event": "status"},
    ),
    Fault(
        "OS without OS.time", "case_id,slide_id,days,OS\np,s,1,1\n", 2, "OS", "not known",
        {"time": "days", "event": "OS"},
    ),
    Fault(
        "numbers among words", "case_id,slide_id,months,status\np,s,1,dead\nq,t,2,0\n", 3, "status", "event_coding",
        {"time": "months", "event": "status"},
    ),
    Fault("coding of a bare 1", "case_id,slide_id,OS_MONTHS,OS_STATUS\np,s,1,1\n", 2, "OS_STATUS", "event_coding"),
]  # fmt: skip


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 60
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_the_error_names_file_row_column_and_next_step(tmp_path: Path, fault: Fault) -> None:
    path = tmp_path / "cohort.csv"
    path.write_bytes(fault.data.encode() if isinstance(fault.data, str) else fault.data)
    with pytest.raises(TableError) as caught:
        read_cohort(path, **fault.options)
    message = str(caught.value)
    assert message.startswith(f"{path}, row {fault.row}, column '{fault.column}': ")
    assert fault.said in message
    assert caught.value.hint
    assert len(message) < 600


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "ranking"}, "unknown task 'ranking'"),
        ({"scored_by": "tile"}, "unknown scored_by 'tile'"),
        ({"event_coding": "1=dead"}, "unknown event_coding '1=dead'"),
        ({"drop": ("all",)}, "unknown drop 'all'"),
        ({"classes": ("a", "a")}, "different names"),
        ({"classes": ("a",)}, "two or more"),
        ({"classes": "ab"}, "two or more"),
        ({"slides": ["s"]}, "names the slides itself"),
    ],
)
def test_options_that_do_not_exist(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    path = tmp_path / "cohort.csv"
    path.write_text(LABELS + "p,s,a\nq,t,b\n")
    with pytest.raises(TableError, match=said) as caught:
        read_cohort(path, **options)
    assert str(path) in str(caught.value)


def test_faults_in_a_second_table_name_that_table(tmp_path: Path) -> None:
    clinical = tmp_path / "clini.csv"
    clinical.write_text("PATIENT,label\np,a\nq,b\n")
    slides = tmp_path / "slides.csv"
    for text, row, column, said in [
        ("PATIENT,FILENAME\np,s.h5\nq,s.h5\n", 3, "FILENAME", "already in row 2"),
        ("PATIENT,FILENAME\np,s.h5\n,t.h5\n", 3, "PATIENT", "id is empty"),
        ("PATIENT,path\np,s.h5\n", 1, "slide_id", "no slide column"),
    ]:
        slides.write_text(text)
        with pytest.raises(TableError, match=said) as caught:
            read_cohort(clinical, slide_table=slides)
        assert f"{slides}, row {row}, column '{column}'" in str(caught.value)
    clinical.write_text("PATIENT,label\np,a\nq,b\np,a\n")
    slides.write_text("PATIENT,FILENAME\np,s.h5\nq,t.h5\n")
    with pytest.raises(TableError, match=r"row 4, column 'PATIENT'.*already in row 2"):
        read_cohort(clinical, slide_table=slides)
