"""What the verbs that know slides by pseudonyms have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths
from marble.errors import InputError
from marble.identifiers import IdFrom

Pseudonyms = Annotated[
    Path | None,
    typer.Option("--pseudonyms", metavar="MAP.csv", help="Random slide ids; only this table says of which files."),
]


def written(table: Path | None) -> None:
    """The table of a verb that may add to it."""
    if table is not None:
        paths.output_file(table, "--pseudonyms")


def read(table: Path | None) -> None:
    """The table of a verb that only looks into it."""
    if table is not None:
        paths.existing_file(table, "table of pseudonyms")


def one_kind_of_ids(table: Path | None, id_from: IdFrom) -> None:
    """Pseudonyms are ids of their own."""
    if table is not None and id_from != "stem":
        raise InputError("--pseudonyms gives slides other ids than --id-from", hint="Leave one of them out")


@contextmanager
def unnamed_sources(private: bool) -> Iterator[None]:
    """What is wrong with SOURCES, said without their names if slides are private."""
    try:
        yield
    except InputError as error:
        if not private:
            raise
        raise InputError(error.what, where="SOURCES", hint="Give slide files, or folders that hold some") from None
