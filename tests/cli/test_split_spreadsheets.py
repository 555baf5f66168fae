"""`marble split` on tables as spreadsheets save them: semicolons, decimal commas, marks for errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.splitting import parts, refused, split, write

SEMICOLONS = "Fall;Bild;Wert;OS_MONTHS;OS_STATUS\n" + "".join(
    f'P{i};"s{i}.svs";{i},5;{i + 1},25;{i % 2}\n' for i in range(20)
)


@pytest.mark.parametrize(
    "data",
    [
        SEMICOLONS.encode(),
        SEMICOLONS.encode("utf-8-sig").replace(b"\n", b"\r\n"),
        ("sep=;\r\n" + SEMICOLONS.replace("\n", "\r\n")).encode("utf-8-sig"),
        SEMICOLONS.replace(";", "\t").encode("utf-16"),
        ("sep=\t\n" + SEMICOLONS.replace(";", "\t")).encode("utf-16"),
    ],
    ids=["semicolons", "Excel CSV UTF-8", "sep= line", "Excel Unicode text", "UTF-16 with sep="],
)
def test_spreadsheets_with_decimal_commas(tmp_path: Path, data: bytes) -> None:
    table = write(tmp_path / "cohort.csv", data)
    who = ("--case", "Fall", "--slide", "Bild")
    made = split(table, "--out", tmp_path / "a", *who, "--target", "Wert")
    assert made.exit_code == 0, made.output
    assert "min, quartiles, max: 0.5, 5.25, 10, 14.75, 19.5" in made.output
    made = split(table, "--out", tmp_path / "b", *who, "--event-coding", "1=event")
    assert made.exit_code == 0, made.output
    assert "events: 10" in made.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("case_id;slide_id;target\np;s;1,5\nq;t;2.5\n", "row 3, column 'target': '2.5' here, '1,5' in row 2"),
        ("case_id\tslide_id\ttarget\np\ts\t1,500\nq\tt\t2\n", "row 2, column 'target': '1,500' may be"),
        ("case_id;slide_id;age;target\np;s;1,5;1.500\nq;t;3;2\n", "row 2, column 'target': '1.500' may be"),
        ('case_id,slide_id,target\np,s,"1,5"\nq,t,2\n', "Write decimals with a point"),
        ("case_id,slide_id,target\np,s,low\nq,t,2\n", "'low' is not a number"),
        ("case_id,slide_id,target\np,s,1e999\nq,t,2\n", "too large"),
        ("case_id,slide_id,target\np,s,2\nq,t,2\n", "all 2 rows have the value 2"),
        ("case_id,slide_id,target\np,s,1\np,t,2\nq,u,2\n", "patient 'p' has 2 here, 1 in row 2"),
        ("case_id,slide_id,score\np,s,1\nq,t,2\n", "no column is known as the number to predict"),
        ("case_id,slide_id,target\np,s,?\nq,t,2\nr,u,\n", "no value for 's' ('?' means missing), nor in row 4"),
    ],
)
def test_numbers_that_cannot_be_meant(tmp_path: Path, text: str, said: str) -> None:
    table = write(tmp_path / "cohort.csv", text)
    assert said in refused(table, "--out", tmp_path / "out", "--task", "regression")


def test_a_workbook_says_how_to_save_it(tmp_path: Path) -> None:
    said = refused(write(tmp_path / "cohort.xlsx", b"PK\x03\x04"), "--out", tmp_path / "out")
    assert "File, Save As, CSV UTF-8" in said


def as_excel_saves(rows: list[str]) -> bytes:
    """Semicolons, a byte-order mark, Windows line ends, and two rows that were once formatted."""
    blank = ";" * rows[0].count(";")
    return "\r\n".join([*rows, blank, blank, ""]).encode("utf-8-sig")


def test_a_german_spreadsheet_is_read_as_it_is_saved(tmp_path: Path) -> None:
    rows = [f" {n:03d} ; {n:03d}.svs ;{n},5;{('FALSCH', 'WAHR')[n % 2]};31.12.2020" for n in range(1, 13)]
    table = write(tmp_path / "t.csv", as_excel_saves(["Patient ID;SLIDE;Time;Event;Datum", *rows]))
    done = split(table, "--out", tmp_path / "splits", "--folds", "3")
    assert done.exit_code == 0, done.output
    assert "survival, 12 cases, 12 slides" in done.output
    assert "events: 6, censored: 6" in done.output
    placed = {name for part in ("train", "val", "test") for name in parts(tmp_path / "splits")[0][part]}
    assert placed == {f"{n:03d}" for n in range(1, 13)}


def test_what_spreadsheets_write_for_an_error_is_no_class(tmp_path: Path) -> None:
    rows = [f"{n:03d};{n:03d}.svs;{'ab'[n % 2]}" for n in range(12)]
    gaps = ["#NV", "#WERT!", "#VALEUR!", "k.A.", "unbekannt"]
    rows += [f"{n};{n}.svs;{gap}" for n, gap in enumerate(gaps, start=100)]
    table = write(tmp_path / "t.csv", as_excel_saves(["PATIENT;Slide;Label", *rows]))
    done = split(table, "--out", tmp_path / "splits", "--folds", "3", "--drop", "missing")
    assert done.exit_code == 0, done.output
    assert [line for line in done.output.splitlines() if line.startswith("class ")] == ["class a: 6", "class b: 6"]
