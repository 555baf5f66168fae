"""Split files as they are: CLAM, STAMP, Patho-Bench, tables with a split column, and our own JSON.

`load_split_files` returns what a file says, leaks included, for the audit; `read_splits` turns it into
checked splits by patient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble import files
from marble.cohorts.cohort import Cohort
from marble.cohorts.families import case_column, fold_columns, slide_column
from marble.cohorts.splits import PARTS, Split, with_validation
from marble.errors import IntegrityError, MarbleError, SplitError, TableError
from marble.identifiers import listed_id, normal, slide_id_of, spelling_key, tcga_patient
from marble.tabular import Row, Table, csv_text, read_table, safe_cell

FORMAT = "marble-split-1"
_SPLIT_COLUMNS = ("split", "data_split")
_PART_NAMES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


@dataclass(frozen=True)
class Member:
    """A name in a part of a split file, and the row it stands in (0: the format has no rows)."""

    name: str
    line: int
    patient: str | None = None  # where the file itself says to whom a slide belongs

    @property
    def stands_for(self) -> str:
        return self.patient or self.name


@dataclass(frozen=True)
class SplitFile:
    """One split as a file states it."""

    source: str
    number: int
    scheme: str
    seed: int
    members: dict[str, tuple[Member, ...]]  # by part: train, val, test

    def all(self) -> list[tuple[str, Member]]:
        return [(part, member) for part in PARTS for member in self.members[part]]


def write_splits(splits: Sequence[Split], out_dir: str | Path, cohort: Cohort | None = None) -> list[Path]:
    """Write `<scheme>/<repeat>.json` and CLAM's `<scheme>/splits_<repeat>.csv`.

    The CSV lists slides if a cohort is given, else patients. Splits that are there already are never changed.
    """
    targets = [Path(out_dir) / split.scheme / f"{split.repeat}.json" for split in splits]
    for split, target in zip(splits, targets, strict=True):  # all are looked at before the first is written
        if target.exists() and _own(files.read_json(target), str(target)) != split:
            what = "another split of this name is there already, and runs may depend on it"
            raise SplitError(what, where=target, hint="Choose another folder")
    written = []
    for split, target in zip(splits, targets, strict=True):
        record = {"format": FORMAT, **split.model_dump(mode="json"), "fingerprint": split.fingerprint()}
        written.append(files.publish(target.parent / f"splits_{split.repeat}.csv", _clam_text(split, cohort)))
        written.append(files.publish_json(target, record))
    return written


def read_splits(
    path: str | Path,
    cohort: Cohort | None = None,
    *,
    val_share: float | None = None,
    val_as_test: bool = False,
    drop_unknown: bool = False,
) -> list[Split]:
    """Read splits from a file or folder, as patients. With a cohort they are checked to be complete.

    Args:
        path: a split file of any known format, or a folder of them.
        cohort: says which patient a slide belongs to; without it TCGA barcodes do, and any other name is a patient.
        val_share: take this share of train as validation, for formats without one (needs the cohort).
        val_as_test: the file's validation part is the test part, for k-folds that have none.
        drop_unknown: leave out names that the cohort does not have.
    """
    found: list[Split] = []
    source_of: dict[int, str] = {}  # runs and held-out patients are kept by this number
    for file in load_split_files(path):
        if (other := source_of.setdefault(file.number, file.source)) != file.source:
            hint = "Keep one of them, or make all splits of a folder by one `marble split --repeats`"
            raise SplitError(f"split {file.number} is there twice, also as {other}", where=file.source, hint=hint)
        split = _by_patient(file, cohort, drop_unknown)
        if val_as_test:
            if split.test:
                hint = "Leave out `val_as_test` in the experiment's split"
                raise SplitError("the split has a test part already", where=file.source, hint=hint)
            split = split.model_copy(update={"val": (), "test": split.val})
        if val_share is not None:
            if cohort is None:
                raise SplitError("val_share needs the cohort", where=file.source, hint="Give the cohort table")
            split = with_validation(split, cohort, val_share)
        if cohort is not None:
            split.check(cohort)
        found.append(split)
    return found


def load_split_files(path: str | Path) -> list[SplitFile]:
    """Every split of a file, or of a folder's files in the order of their numbers, exactly as stated."""
    root = Path(path)
    if root.is_dir():
        return [split for file in _split_files_of(root) for split in _load(file)]
    return _load(root)


def patient_of(name: str, cohort: Cohort | None) -> str:
    """The patient a name in a split file stands for."""
    plain = listed_id(name)
    if cohort is not None:
        for candidate in (name, normal(name), plain, slide_id_of(name)):
            if candidate in cohort:
                return candidate
            if cohort.has_slide(candidate):
                return cohort.case_of(candidate).case_id
    return tcga_patient(plain) or plain


def refuse_two_meanings(file: SplitFile, cohort: Cohort) -> None:
    """A bare name that is one patient's id and the slide of another would be taken for either without a word."""
    for part, member in file.all():
        name = listed_id(member.name)
        owner = cohort.case_of(name).case_id if member.patient is None and cohort.has_slide(name) else name
        if owner != name and name in cohort:
            what = f"'{name}' is a patient of the cohort, and also a slide of patient '{owner}'"
            hint = "Give a table with a patient, a slide and a split column, which says whose slide it is"
            raise SplitError(what, where=_place(file, member, part), hint=hint)


def _by_patient(file: SplitFile, cohort: Cohort | None, drop_unknown: bool) -> Split:
    homes: dict[str, tuple[str, str]] = {}  # spelling -> (patient, part)
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    if cohort is not None:
        refuse_two_meanings(file, cohort)
    for part, member in file.all():
        patient = patient_of(member.stands_for, cohort)
        if cohort is not None and drop_unknown and patient not in cohort:
            continue
        key = spelling_key(patient)
        if key not in homes:
            homes[key] = (patient, part)
            parts[part].append(patient)
        known, home = homes[key]
        if home != part:
            what = f"patient '{known}' is in {home} and in {part} ('{member.name}')"
            hint = "Name all such patients with `marble split --check`, and move each into one part"
            raise SplitError(what, where=_place(file, member, part), hint=hint)
    sorted_parts = {part: tuple(sorted(names)) for part, names in parts.items()}
    return Split(**sorted_parts, scheme=file.scheme, repeat=file.number, seed=file.seed)


def _place(file: SplitFile, member: Member, part: str) -> str:
    return f"{file.source}, row {member.line}, column '{part}'" if member.line else file.source


def _split_files_of(folder: Path) -> list[Path]:
    """The split files of a folder, or of the only folder in it that has some, as `marble split --out` leaves them."""
    if chosen := _split_files_in(folder):
        return chosen
    below = [one for one in sorted(folder.iterdir()) if one.is_dir() and _split_files_in(one)]
    if len(below) == 1:
        return _split_files_in(below[0])
    if below:
        names = ", ".join(one.name for one in below)
        raise SplitError(f"several folders of splits are here: {names}", where=folder, hint=f"Give one, as {below[0]}")
    hint = "Give a folder with splits_0.csv ... or 0.json ..., or one split file"
    raise SplitError("the folder has no split files", where=folder, hint=hint)


def _split_files_in(folder: Path) -> list[Path]:
    own = [file for file in folder.glob("*.json") if re.fullmatch(r"\d+|splits", file.stem)]
    clam = [file for file in folder.glob("splits_*.csv") if re.fullmatch(r"splits_\d+", file.stem)]
    chosen = own or clam or list(folder.glob("splits_*_bool.csv"))
    return sorted(chosen, key=lambda file: (_number(file), file.name))


def _number(file: Path) -> int:
    digits = re.search(r"\d+", file.name)
    return int(digits.group()) if digits else 0


def _load(path: Path) -> list[SplitFile]:
    if path.suffix.lower() == ".json":
        return _load_json(path)
    try:
        table = read_table(path, keep_index=True, pad_short_rows=True)
    except TableError as error:
        raise SplitError(error.what, where=error.where, hint=error.hint) from None
    columns = set(table.columns)
    if folds := fold_columns(table):
        return [_load_column(table, fold, i, "patho-bench") for i, fold in enumerate(folds)]
    if "train" in columns and ("val" in columns or "test" in columns):
        return [_load_clam(table, path)]
    split_column = next((column for name in _SPLIT_COLUMNS if (column := table.named(name)) is not None), None)
    if split_column is not None:
        return [_load_column(table, split_column, 0, _scheme(path.stem))]
    hint = "Known are CLAM's train,val,test columns, fold_0 ... columns, a split column, STAMP's splits.json"
    raise SplitError("no split format is known by these columns", where=f"{path}, row 1, column 'train'", hint=hint)


def _load_clam(table: Table, path: Path) -> SplitFile:
    parts = [part for part in PARTS if part in table]
    cells = {table.cell(row, part).casefold() for row in table.rows for part in parts}
    if cells <= {"true", "false"}:
        members = _load_flags(table, parts)
    elif _is_descriptor(table, cells):
        where = f"{path}, row {table.rows[0].line}, column '{parts[0]}'"
        hint = "Give the split file beside it, such as splits_0.csv"
        raise SplitError("this file counts classes, it does not list patients", where=where, hint=hint)
    else:
        members = _load_lists(table, parts)
    numbered = re.fullmatch(r"splits_\d+(_bool)?", path.stem)
    scheme = _scheme(path.absolute().parent.name if numbered else path.stem)
    return SplitFile(str(path), _number(path), scheme, 0, members)


def _scheme(name: str) -> str:
    return re.sub(r"[^\w=-]+", "-", name).strip("-") or "splits"


def _is_descriptor(table: Table, cells: set[str]) -> bool:
    """CLAM's descriptor has class names down the side and counts in the cells; a list is numbered down the side."""
    side = [row.cells[0].strip() for row in table.rows]
    return table.columns[0] == "" and not any(name.isdigit() for name in side) and all(c.isdigit() for c in cells)


def _load_lists(table: Table, parts: list[str]) -> dict[str, tuple[Member, ...]]:
    # The raw text is kept, blanks included: a blank is what makes other tools see two patients.
    columns = {part: table.columns.index(part) for part in parts}
    return {
        part: tuple(
            Member(row.cells[columns[part]], row.line)
            for row in table.rows
            if part in columns and row.cells[columns[part]].strip()
        )
        for part in PARTS
    }


def _load_flags(table: Table, parts: list[str]) -> dict[str, tuple[Member, ...]]:
    for row in table.rows:
        if not row.cells[0].strip():
            what = "the row has no name"
            raise SplitError(what, where=f"{table.source}, row {row.line}, column 1", hint="Name the slide")
    return {
        part: tuple(
            Member(row.cells[0], row.line)
            for row in table.rows
            if part in parts and table.cell(row, part).casefold() == "true"
        )
        for part in PARTS
    }


def _load_column(table: Table, column: str, number: int, scheme: str) -> SplitFile:
    slide, case = slide_column(table), case_column(table)
    name_column = slide or case
    if name_column is None:
        where = f"{table.source}, row {table.header_line}, column 'slide_id'"
        raise SplitError("no slide or patient column is known by its name", where=where, hint="Name one slide_id")

    def raw(row: Row, name: str) -> str:  # blanks included, see _load_lists
        return row.cells[table.columns.index(name)]

    members: dict[str, list[Member]] = {part: [] for part in PARTS}
    for row in table.rows:
        value = table.cell(row, column)
        part = _PART_NAMES.get(value.casefold())
        if part is None and value:
            where = f"{table.source}, row {row.line}, column '{column}'"
            raise SplitError(f"'{value[:40]}' is not train, val or test", where=where, hint="Correct the cell")
        if part is not None:
            patient = None if case is None else raw(row, case)
            members[part].append(Member(raw(row, name_column), row.line, patient or None))
    return SplitFile(table.source, number, scheme, 0, {part: tuple(found) for part, found in members.items()})


def _load_json(path: Path) -> list[SplitFile]:
    try:
        content = files.read_json(path)
    except IntegrityError as error:
        raise SplitError(f"not readable as JSON: {error.what}", where=path, hint="Give a split file") from None
    except MarbleError as error:
        raise SplitError(error.what, where=error.where, hint="Check the path of the split file") from None
    if isinstance(content, dict) and content.get("format") == FORMAT:
        split = _own(content, str(path))
        members = {part: tuple(Member(name, 0, name) for name in names) for part, names in split.parts()}
        return [SplitFile(str(path), split.repeat, split.scheme, split.seed, members)]
    if isinstance(content, dict) and isinstance(content.get("splits"), list):
        return [_stamp(entry, i, path) for i, entry in enumerate(content["splits"])]
    hint = "Known are our own split files and STAMP's {'splits': [{'train_patients': [...], 'test_patients': [...]}]}"
    raise SplitError("not a split file that is known", where=path, hint=hint)


def _stamp(entry: Any, number: int, path: Path) -> SplitFile:
    members: dict[str, tuple[Member, ...]] = {}
    for part in PARTS:
        names = entry.get(f"{part}_patients", []) if isinstance(entry, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
            where = f"{path}, splits[{number}].{part}_patients"
            raise SplitError(
                "not a list of patient ids as text", where=where, hint='Write ids in quotes, as in ["001"]'
            )
        members[part] = tuple(Member(name, 0, name) for name in names)
    if not members["train"]:
        raise SplitError("no training patients", where=f"{path}, splits[{number}].train_patients", hint="List them")
    return SplitFile(str(path), number, "stamp", 0, members)


def _own(content: Any, source: str) -> Split:
    if not isinstance(content, dict):
        raise SplitError("not a split file", where=source, hint="Remove it or choose another folder")
    fields = {key: value for key, value in content.items() if key not in ("format", "fingerprint")}
    split = Split.parse(fields, where=source)
    if content.get("fingerprint") != split.fingerprint():
        hint = "The file was changed by hand: make the split again, or list patients in a CLAM CSV"
        raise IntegrityError("the split does not match its fingerprint", where=source, hint=hint)
    return split


def _clam_text(split: Split, cohort: Cohort | None) -> str:
    names: Callable[[str], Iterable[str]] = (
        (lambda case: (case,)) if cohort is None else (lambda c: cohort.case(c).slides)
    )
    columns = [[safe_cell(name) for case in patients for name in names(case)] for _, patients in split.parts()]
    rows = [
        [str(i), *(column[i] if i < len(column) else "" for column in columns)]
        for i in range(max(len(column) for column in columns))
    ]
    return csv_text(["", *PARTS], rows)
