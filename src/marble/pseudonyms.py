"""Slides under random ids: one table says which file is whose, and nothing else that is written or said does.

The table (`MAP.csv`) is readable by its owner alone. It only grows: a file that is found again has its id by its path,
and one that was moved or renamed by its bytes, unless the file it would then be a copy of is still there. An id may so
have several rows, one for each name that its file had.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from marble import files
from marble.compute import locks
from marble.errors import InputError, MarbleError
from marble.identifiers import printable, slide_id_of
from marble.slide_files import files_of, look_at, together
from marble.tabular import csv_text, read_table, safe_cell

COLUMNS = ("file", "slide_id", "bytes", "sample_sha256")
_ID_BYTES = 8
_OWNER_ONLY = 0o600
_UNREAD = ("", "")


@dataclass(frozen=True)
class KnownFile:
    """A row of the table: one name of one slide's file, and what tells the file from others."""

    file: str  # with its folders, as text that any table can hold
    slide_id: str
    content: tuple[str, str]  # bytes, and the hash of a sample of them; empty where the file could not be read


class Pseudonyms:
    """The rows of a table, to be asked both ways."""

    def __init__(self, rows: Iterable[KnownFile] = (), source: str = "") -> None:
        self.source = source
        self.rows: dict[KnownFile, None] = {}  # each once, in their order
        self._by_file: dict[str, str] = {}
        self._by_content: dict[tuple[str, str], list[KnownFile]] = {}
        self._by_name: dict[str, set[str]] = {}
        self._ids: set[str] = set()
        for row in rows:
            self._add(row)

    @classmethod
    def read(cls, path: str | Path) -> Pseudonyms:
        """The table at `path`."""
        table = read_table(path)
        file, slide_id, size, sample = (
            table.require(column, "Give a table that `marble extract --pseudonyms` wrote") for column in COLUMNS
        )
        rows = (
            KnownFile(
                table.cell(row, file), table.cell(row, slide_id), (table.cell(row, size), table.cell(row, sample))
            )
            for row in table.rows
        )
        return cls(rows, str(path))

    def ids_of(self, paths: Iterable[Path]) -> dict[Path, str]:
        """The ids of those files that have one; a copy of a file is taken for it."""
        found: dict[Path, str] = {}
        for path in paths:
            known = self._by_file.get(_written(path))
            alike = {row.slide_id for row in self._by_content.get(_content(path), ())} if known is None else set()
            slide_id = known or (alike.pop() if len(alike) == 1 else None)
            if slide_id is not None:
                found[path] = slide_id
        return found

    def files(self) -> dict[str, Path]:
        """The file of every slide that is where the table says; of several names, the last."""
        return {row.slide_id: Path(row.file) for row in self.rows if os.path.lexists(row.file)}

    def id_for(self, name: str) -> str | None:
        """The id of a slide that a table of the user's calls by its file: with folders, by name or by stem."""
        if name in self._by_file or name in self._ids:
            return self._by_file.get(name, name)
        found = self._by_name.get(slide_id_of(name), set())
        if len(found) > 1:
            raise InputError(
                f"{len(found)} slides have files of one name ({', '.join(sorted(found))}), and a cohort table calls a "
                "slide by that name",
                where=self.source,
                hint="Write the file's whole path, as it is here, into the cohort table",
            )
        return next(iter(found), None)

    def extend(self, paths: Iterable[Path]) -> dict[Path, str]:
        """An id for each of these files, and a row for each of their names."""
        given: dict[Path, str] = {}
        taken: set[str] = set()  # two names of one file are two slides of a batch, as without pseudonyms
        for path in paths:
            name, content = _written(path), _content(path)
            slide_id = self._by_file.get(name) or self._moved(path, content, taken) or self._new_id()
            self._add(KnownFile(name, slide_id, content))
            given[path] = slide_id
            taken.add(slide_id)
        return given

    def to_csv(self) -> str:
        return csv_text(COLUMNS, ((safe_cell(row.file), row.slide_id, *row.content) for row in self.rows))

    def _add(self, row: KnownFile) -> None:
        if row not in self.rows:
            self.rows[row] = None
            self._by_file[row.file] = row.slide_id
            self._by_content.setdefault(row.content, []).append(row)
            self._by_name.setdefault(slide_id_of(row.file), set()).add(row.slide_id)
            self._ids.add(row.slide_id)
        self._by_content.pop(_UNREAD, None)  # files that could not be read are not alike

    def _moved(self, path: Path, content: tuple[str, str], taken: set[str]) -> str | None:
        """The slide whose file had this content and is not where it was, or is this very file by another way."""
        rows = self._by_content.get(content, ())
        others = {row.slide_id for row in rows if Path(row.file).exists() and not path.samefile(row.file)}
        return next((row.slide_id for row in rows if row.slide_id not in others | taken), None)

    def _new_id(self) -> str:
        while (slide_id := f"slide-{secrets.token_hex(_ID_BYTES)}") in self._ids:
            pass
        return slide_id


def pseudonyms_for(table: str | Path, paths: Iterable[Path]) -> dict[Path, str]:
    """An id for each of these files; those that are new to the table are written into it."""
    target = Path(table)
    with locks.hold(target.with_name(f".{target.name}{locks.SUFFIX}"), "the table of pseudonyms", wait=True):
        known = Pseudonyms.read(target) if target.exists() else Pseudonyms(source=str(target))
        before = len(known.rows)
        given = known.extend(paths)
        if len(known.rows) > before:
            files.publish(target, known.to_csv(), mode=_OWNER_ONLY)
    return given


def refuse_inside(table: Path, store: Path) -> None:
    """A store may be given away; the table that says whose slides are in it must not go with it."""
    if store.resolve() in table.resolve().parents:
        hint = "Keep it where only you can read it, outside of what is passed on"
        raise InputError("the table of pseudonyms would lie within the store", where="--pseudonyms", hint=hint)


def nameless(text: str, path: Path, slide_id: str) -> str:
    """The text with the slide's id in place of its file, and without the names of the file's folders."""
    places = {path, path.absolute(), Path(os.path.realpath(path))}
    names = {str(place) for place in places} | {place.name for place in places} | {place.stem for place in places}
    names |= {slide_id_of(place) for place in places}
    folders = {part for place in places for part in place.parent.parts if part.strip("/\\.")}
    spelt = {each for name in names for each in _spellings(name)}
    above = {each for name in folders for each in _spellings(name)}
    pattern = "|".join(
        [re.escape(slide_id)]  # as it is: a file may be called `slide`
        + [rf"(?<![^\W_]){re.escape(name)}(?![^\W_])" for name in sorted(spelt, key=len, reverse=True)]
        + [rf"(?<![^/\\'\"\s]){re.escape(name)}(?=[/\\])" for name in sorted(above, key=len, reverse=True)]
        + [rf"(?<=[/\\]){re.escape(name)}(?![^\W_])" for name in sorted(above, key=len, reverse=True)]
    )
    return re.sub(pattern, lambda found: slide_id if found[0] in {*spelt, slide_id} else "...", text)


def nameless_error(error: Exception, path: Path, slide_id: str) -> MarbleError:
    """The error in words that name the slide by its id."""
    from marble.compute import describe

    said = nameless(describe(error), path, slide_id)
    return InputError(said.removeprefix(f"{slide_id}: "), where=slide_id)


def _spellings(name: str) -> set[str]:
    """How a message may write a name: as it is, quoted by Python, escaped for a terminal or for an address."""
    encoded = os.fsencode(name)
    return {name, repr(name)[1:-1], ascii(name)[1:-1], repr(encoded)[2:-1], printable(name), quote(encoded)} - {""}


def _written(path: Path) -> str:
    """The whole path, in text that a table can hold."""
    return os.fsencode(os.path.normpath(path.absolute())).decode("utf-8", "backslashreplace")


def _content(path: Path) -> tuple[str, str]:
    try:
        if not path.is_file() or not path.stat().st_size:
            return _UNREAD
        parts = files_of(path)
        look = together(parts, [look_at(part) for part in parts])
        return str(look.size), look.sample_sha256
    except OSError:
        return _UNREAD
