"""`marble split` as a test types it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from marble import cli
from marble.errors import MarbleError


def split(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.assemble(), ["split", *map(str, arguments)])


def refused(*arguments: str | Path) -> str:
    """The one line that a user gets."""
    result = split(*arguments)
    assert isinstance(result.exception, MarbleError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def parts(folder: Path) -> list[dict[str, list[str]]]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("[0-9]*.json"))]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
