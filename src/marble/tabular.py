"""Strict reading of CSV-like tables, and cells that are safe to write into one.

Every cell stays the text it was in the file: `001` and `NA` are not numbers or gaps. Whatever is wrong with a table is
reported with its file, its row (the line in the file, counted from 1) and its column. Read are the flavours that
spreadsheets write: commas, semicolons or tabs; UTF-8, or UTF-16 with its mark; a first line `sep=;`; decimal commas
where commas do not separate cells.
"""

from __future__ import annotations

import csv
import gzip
import html
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from marble.errors import TableError
from marble.identifiers import normal
from marble.specs import unknown_choice

MAX_BYTES = 512 * 1024 * 1024
MAX_CELL = 100_000  # characters
SEPARATORS = (",", ";", "\t")
_SPREADSHEETS = {".xlsx", ".xls", ".xlsm", ".ods", ".parquet", ".feather", ".sav", ".rds"}
_UNREADABLE_ARCHIVE = (
    zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError,
)  # fmt: skip
_POINT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMMA = re.compile(r"[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")
_FORMULA_STARTS = "=+-@\uff1d\uff0b\uff0d\uff20"  # and their full-width forms, which spreadsheets also obey


@dataclass(frozen=True, order=True)
class Row:
    """One record of a table."""

    line: int  # where it starts in the file, counted from 1
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table as text: column names and rows, all of the same width."""

    source: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    header_line: int = 1
    separator: str = ","
    _index: dict[str, int] = field(init=False, repr=False, compare=False)
    _marks: dict[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {name: i for i, name in enumerate(self.columns)})

    def __contains__(self, column: str) -> bool:
        return column in self._index

    def cell(self, row: Row, column: str) -> str:
        """The text of a cell without surrounding blanks."""
        return row.cells[self._index[column]].strip()

    def number(self, row: Row, column: str) -> float | None:
        """The number in a cell, or None if there is none. Decimal commas are read where the column has them."""
        text = self.cell(row, column)
        if column not in self._marks:
            self._marks[column] = self._decimal_mark(column)
        if self._marks[column] == "," and _COMMA.fullmatch(text):
            return float(text.replace(",", "."))
        return float(text) if _POINT.fullmatch(text) else None

    def named(self, name: str) -> str | None:
        """The column that has this name, whatever its case and however its words are joined; never one of two."""
        found = self._by_key.get(column_key(name), [])
        if len(found) > 1:
            what = f"columns {' and '.join(repr(column) for column in found)} have the same name but for its spelling"
            raise self.header_fault(what, found[1], "Rename or remove one of them")
        return found[0] if found else None

    def require(self, column: str, hint: str | None = None) -> str:
        """The table's name of a column that the user named, or an error that names the nearest one there is."""
        found = column if column in self._index else self.named(column)
        if found is None:
            what = unknown_choice("column", column, [name for name in self.columns if name])
            raise self.header_fault(what, column, hint or "Name a column of this table")
        return found

    def fault(self, row: Row, column: str, what: str, hint: str) -> TableError:
        """An error at one cell."""
        return table_error(self.source, row.line, column, what, hint)

    def header_fault(self, what: str, column: str, hint: str) -> TableError:
        """An error about the columns themselves."""
        return table_error(self.source, self.header_line, column, what, hint)

    @cached_property
    def _by_key(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.columns:
            found.setdefault(column_key(name), []).append(name)
        return found

    def _decimal_mark(self, column: str) -> str:
        """`,` or `.`; refused is a column that mixes them, or in which a mark may as well set thousands apart."""
        if self.separator == ",":
            return "."
        cells = [(row, self.cell(row, column)) for row in self.rows]
        commas = [(row, text) for row, text in cells if _COMMA.fullmatch(text)]
        points = [(row, text) for row, text in cells if "." in text and _POINT.fullmatch(text)]
        if commas and points:
            (row, text), (other, example) = max(commas[0], points[0]), min(commas[0], points[0])
            what = f"'{text}' here, '{example}' in row {other.line}: is it a point or a comma that marks decimals?"
            raise self.fault(row, column, what, "Write all numbers of a column in one way")
        doubtful = commas if self.separator == "\t" else points if self._has_decimal_commas else []
        if doubtful and all(_THOUSANDS.fullmatch(text) for _, text in doubtful):
            row, text = doubtful[0]
            what = f"'{text}' may be a decimal number or a number of thousands"
            raise self.fault(row, column, what, "Write numbers without marks between thousands")
        return "," if commas else "."

    @cached_property
    def _has_decimal_commas(self) -> bool:
        return any(_COMMA.fullmatch(cell.strip()) for row in self.rows for cell in row.cells)


def column_key(name: str) -> str:
    """Equal for names of columns that differ only in case, blanks, `_`, `-` and `.`."""
    return re.sub(r"[\s_.-]+", "", normal(name).casefold())


def table_error(source: object, line: int, column: str, what: str, hint: str) -> TableError:
    """An error that names file, row and column and finishes with the next step."""
    return TableError(what, where=f"{source}, row {line}, column '{column}'", hint=hint)


def read_table(path: str | Path, *, keep_index: bool = False, pad_short_rows: bool = False) -> Table:
    """Read a CSV, TSV or semicolon table, plain, gzipped, or as the only file of a zip archive.

    A leading column without a name (the index that other tools write) is left out unless `keep_index`, and so is any
    other that holds nothing at all (Excel saves columns that were once formatted).
    """
    source = str(path)
    text = _decode(_read_bytes(Path(path)), source)
    lines_before, body = _skip_comments(text)
    separator, lines_before, body = _separator(body, lines_before)
    records = _records(body, separator, lines_before, source)
    header = next(records, None)
    if header is None:
        raise table_error(source, 1, "(all)", "the file is empty", "Give a table with a header line and rows")
    columns = tuple(normal(name) for name in header.cells)
    _check_header(columns, header.line, source)
    filled = (row for row in records if any(cell.strip() for cell in row.cells))  # Excel saves rows once formatted: ;;;
    rows = tuple(_widen(row, columns, pad_short_rows, source) for row in filled)
    if not rows:
        what, hint = "the table has a header but no rows", "Add one row per slide"
        raise table_error(source, header.line, columns[0], what, hint)
    columns, rows = _without_blank_columns(columns, rows, header.line, source)
    if not keep_index and columns[0] in ("", "Unnamed: 0"):
        columns = columns[1:]
        rows = tuple(Row(row.line, row.cells[1:]) for row in rows)
    return Table(source, columns, rows, header.line, separator)


def safe_cell(text: str) -> str:
    """The text, marked as text where a spreadsheet would run it as a formula. Use for names, not for numbers."""
    return f"'{text}" if text.lstrip()[:1] in _FORMULA_STARTS and text.strip() else text


def markdown_cell(text: str) -> str:
    """The text as a cell of a Markdown table: one line, no HTML, no link, no end of the cell within it."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`|]|(?<=\])[(\[:])", r"\\\1", plain)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows as CSV text with `\\n` line ends."""
    return "".join(",".join(map(_quoted, row)) + "\n" for row in (header, *rows))


def _quoted(cell: str) -> str:
    # csv.writer leaves a bare carriage return unquoted, and what follows it would start a row of its own.
    return '"' + cell.replace('"', '""') + '"' if set(cell) & set(',;\t"\r\n') else cell


def _read_bytes(path: Path) -> bytes:
    if path.suffix.lower() in _SPREADSHEETS:
        hint = "Save the table as CSV (in Excel: File, Save As, CSV UTF-8)"
        raise TableError(f"{path.suffix} tables are not read", where=path, hint=hint)
    if not path.is_file():
        what = "this is a folder, not a table" if path.is_dir() else "no such file"
        raise TableError(what, where=path, hint="Check the path of the table")
    try:
        with open(path, "rb") as file:
            start = file.read(4)
        if start == b"PK\x03\x04":
            return _read_zip(path)
        if start[:2] == b"\x1f\x8b":
            with gzip.open(path) as packed:
                return _bounded(packed.read(MAX_BYTES + 1), path)
        with open(path, "rb") as file:
            return _bounded(file.read(MAX_BYTES + 1), path)
    except _UNREADABLE_ARCHIVE as error:
        hint = "Unpack it yourself and give the CSV inside"
        raise TableError(f"the archive cannot be read: {error}", where=path, hint=hint) from None
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise TableError(what, where=path, hint="Check the file's permissions") from None


def _read_zip(path: Path) -> bytes:
    # Members are only read into memory, so a member's name (which may point anywhere) is never used as a path.
    with zipfile.ZipFile(path) as archive:
        members = [
            member
            for member in archive.infolist()
            if not member.is_dir() and not member.filename.startswith("__MACOSX/")
        ]
        if len(members) != 1:
            what = f"the archive holds {len(members)} files, not one table"
            raise TableError(what, where=path, hint="Unpack it and give the CSV you mean")
        with archive.open(members[0]) as packed:
            return _bounded(packed.read(MAX_BYTES + 1), path)


def _bounded(data: bytes, path: Path) -> bytes:
    if len(data) > MAX_BYTES:
        what = f"the table is larger than {MAX_BYTES // 2**20} MiB"
        raise TableError(what, where=path, hint="Keep only the columns that are needed")
    return data


def _decode(data: bytes, source: str) -> str:
    try:
        # Excel's "Unicode text" is UTF-16 with a mark
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        if error.encoding.startswith("utf-16"):
            what = f"the text is not whole UTF-16: {error.reason}"
            raise TableError(what, where=f"{source}, row 1", hint="Save the table as CSV (UTF-8)") from None
        start = data.rfind(b"\n", 0, error.start) + 1
        line = data.count(b"\n", 0, error.start) + 1
        column = _column_at(data[: data.find(b"\n")], data[start : error.start])
        what = f"byte 0x{data[error.start]:02x} is not UTF-8 (the text may be Latin-1, as older Windows programs write)"
        raise table_error(source, line, column, what, "Save the table as CSV (UTF-8)") from None
    if "\0" in text:
        position = text.index("\0")
        start = text.rfind("\n", 0, position) + 1
        column = _column_at(text.partition("\n")[0].encode(), text[start:position].encode())
        line = text.count("\n", 0, position) + 1
        raise table_error(source, line, column, "a NUL character in the text", "Give a text table, not a binary file")
    return text


def _column_at(header: bytes, before: bytes) -> str:
    """The name of the column that a place in a line belongs to, for text that cannot be parsed yet."""
    separator = max(SEPARATORS, key=lambda mark: header.count(mark.encode())).encode()
    names = header.decode("utf-8", "replace").lstrip("\ufeff").strip().split(separator.decode())
    return names[min(before.count(separator), len(names) - 1)].strip('" ')


def _skip_comments(text: str) -> tuple[int, str]:
    """Leave out the `#` lines that clinical exports put before the header, keeping count of them."""
    skipped = 0
    while text.startswith("#"):
        _, _, text = text.partition("\n")
        skipped += 1
    return skipped, text


def _separator(text: str, lines_before: int) -> tuple[str, int, str]:
    """What parts the cells: said by a first line `sep=;`, as Excel reads and writes it, or seen from the header."""
    said, _, rest = text.partition("\n")
    found = re.fullmatch(r"\"?sep=([,;\t])\"?\r?", said, re.IGNORECASE)
    if found:
        return found[1], lines_before + 1, rest
    header = next((line for line in io.StringIO(text) if line.strip()), "")
    unquoted = "".join(header.split('"')[::2])
    return max(SEPARATORS, key=unquoted.count), lines_before, text


def _records(text: str, separator: str, lines_before: int, source: str) -> Iterator[Row]:
    lines = list(io.StringIO(text, newline=""))
    reader = csv.reader(lines, delimiter=separator, strict=True)
    names: list[str] = []
    while True:
        start = reader.line_num
        line = lines_before + start + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            column = _name(names, _suspect(lines[start].split(separator)))
            what = f"the row is not valid CSV: {error}"
            hint = "Look for a quotation mark that is not closed, or a cell with a whole document in it"
            raise table_error(source, line, column, what, hint) from None
        if not any(cell.strip() for cell in cells) and len(cells) <= 1:
            continue
        for position, cell in enumerate(cells):
            if len(cell) > MAX_CELL:
                what = f"a cell of {len(cell):,} characters (at most {MAX_CELL:,})"
                raise table_error(source, line, _name(names, position), what, "Remove the column or shorten the cell")
        names = names or cells
        yield Row(line, tuple(cells))


def _suspect(pieces: list[str]) -> int:
    """Which piece of a line is likely what the CSV reader stumbled over: the first with a quote, or the longest."""
    quoted = [position for position, piece in enumerate(pieces) if '"' in piece]
    return quoted[0] if quoted else max(range(len(pieces)), key=lambda position: len(pieces[position]))


def _name(names: list[str], position: int) -> str:
    return names[position] if position < len(names) else f"number {position + 1}"


def _check_header(columns: tuple[str, ...], line: int, source: str) -> None:
    seen: set[str] = set()
    for name in filter(None, columns):
        if name in seen:
            raise table_error(source, line, name, "the column appears twice", "Rename or remove one of them")
        seen.add(name)


def _without_blank_columns(
    columns: tuple[str, ...], rows: tuple[Row, ...], line: int, source: str
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """The columns with a name, and the first; one of the others that holds anything is refused."""
    unnamed = [position for position, name in enumerate(columns) if not name and position > 0]
    for position in unnamed:
        if any(row.cells[position].strip() for row in rows):
            column = f"number {position + 1}"
            raise table_error(source, line, column, "a column without a name", "Name it or remove it")
    if not unnamed:
        return columns, rows
    kept = [position for position in range(len(columns)) if position not in unnamed]
    return (
        tuple(columns[position] for position in kept),
        tuple(Row(row.line, tuple(row.cells[position] for position in kept)) for row in rows),
    )


def _widen(row: Row, columns: tuple[str, ...], pad_short_rows: bool, source: str) -> Row:
    have, want = len(row.cells), len(columns)
    if have == want:
        return row
    if have < want and pad_short_rows:
        return Row(row.line, row.cells + ("",) * (want - have))
    column = columns[have] if have < want else f"{columns[-1]} (and beyond)"
    what = f"the row has {have} cells, the header {want}"
    raise table_error(source, row.line, column, what, "Check for a missing or an unquoted separator in this row")
