"""Strict reading of text tables."""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble import tabular
from marble.errors import TableError
from marble.tabular import csv_text, markdown_cell, read_table, safe_cell


def write(folder: Path, data: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_separators_line_ends_and_byte_order_marks(tmp_path: Path, separator: str, end: str, mark: str) -> None:
    text = mark + end.join([separator.join(["id", "label"]), separator.join(["001", "NA"]), ""])
    table = read_table(write(tmp_path, text))
    assert table.columns == ("id", "label")
    assert [row.cells for row in table.rows] == [("001", "NA")]


def test_packed_tables(tmp_path: Path) -> None:
    text = b"id,label\n001,a\n"
    plain = read_table(write(tmp_path, text))
    packed = read_table(write(tmp_path, gzip.compress(text), "t.csv.gz"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../elsewhere.csv", text)
        archive.writestr("__MACOSX/._t.csv", b"junk")
    zipped = read_table(write(tmp_path, buffer.getvalue(), "t.csv.zip"))
    assert plain.rows == packed.rows == zipped.rows
    assert not (tmp_path.parent / "elsewhere.csv").exists()


def test_rows_know_their_line_across_comments_blank_lines_and_line_breaks_in_cells(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, '#note\nid,text\n\na,"two\nlines"\nb,x\n'))
    assert [(row.line, row.cells[0]) for row in table.rows] == [(4, "a"), (6, "b")]


def test_the_index_other_tools_write_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, ",id\n0,a\n1,b\n")
    assert read_table(path).columns == ("id",)
    assert read_table(path, keep_index=True).columns == ("", "id")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.xlsx", b"PK\x03\x04", "Save the table as CSV"),
        ("t.zip", b"PK\x03\x04broken", "archive cannot be read"),
        ("t.gz", b"\x1f\x8bbroken", "archive cannot be read"),
        ("t.csv", b"\xff\xfei\x00d", "not whole UTF-16"),
    ],
)
def test_files_that_are_no_text_tables(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(TableError, match=message) as caught:
        read_table(write(tmp_path, data, name))
    assert name in str(caught.value)


def test_missing_file_folder_and_archive_of_two(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(TableError, match="folder"):
        read_table(tmp_path)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", "x")
        archive.writestr("b.csv", "x")
    with pytest.raises(TableError, match="2 files"):
        read_table(tmp_path / "two.zip")


def test_a_table_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "MAX_BYTES", 1000)
    with pytest.raises(TableError, match="larger than"):
        read_table(write(tmp_path, gzip.compress(b"id\n" + b"a" * 5000), "bomb.gz"))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)] * 3),
        max_size=6,
    )
)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    rows.append(("last", "", ""))
    path.write_bytes(csv_text(["a", "b", "c"], rows).encode())
    filled = [row for row in rows if any(cell.strip() for cell in row)]  # spreadsheets save rows of nothing
    assert [row.cells for row in read_table(path).rows] == filled


@given(st.text())
def test_safe_cells_never_start_a_formula(text: str) -> None:
    safe = safe_cell(text)
    assert safe.lstrip()[:1] not in ("=", "+", "-", "@") or not safe.strip()
    assert safe.removeprefix("'") == text.removeprefix("'") or safe == text


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@SUM(A1)", " =x", "\t=x", "\uff1dx", "\r=x"])
def test_formulas_are_marked_as_text(text: str) -> None:
    assert safe_cell(text) == "'" + text
    assert list(csv.reader(io.StringIO(csv_text(["h"], [[safe_cell(text)]]), newline=""))) == [["h"], ["'" + text]]


def test_ordinary_cells_are_left_alone() -> None:
    for text in ("TCGA-05-4244", "001", "NA", "", "a=b", "HER2+"):
        assert safe_cell(text) == text


def test_markdown_cells_hold_no_markup_of_their_own() -> None:
    for text in ("<script>alert(1)</script>", "a|b", "a\nb", "`x`", "[x](http://y)", "[x][y]", "\\|", "&lt;"):
        cell = markdown_cell(text)
        assert "<" not in cell
        assert "\n" not in cell
        for mark in ("|", "`"):
            assert cell.count(mark) == cell.count(f"\\{mark}")
        assert "](" not in cell
        assert "][" not in cell
    assert markdown_cell("0.9 \u00b1 0.1 [0.8, 0.95]") == "0.9 \u00b1 0.1 [0.8, 0.95]"
    assert markdown_cell("clam_sb (p<0.05)") == "clam_sb (p&lt;0.05)"


def test_columns_without_a_name_and_without_text_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("case;;slide;;\np;;s; ;\nq;;t;;\n;;;;\n")
    table = read_table(path)
    assert table.columns == ("case", "slide")
    assert [row.cells for row in table.rows] == [("p", "s"), ("q", "t")]
