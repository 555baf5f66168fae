"""Paths of the command line, looked at before anything heavy is imported or any work is begun."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from marble import storage
from marble.errors import InputError


def existing(path: Path, what: str = "file or folder", hint: str | None = None) -> Path:
    """A path that is there."""
    storage.pull(path)
    if not path.exists():
        raise InputError(f"no such {what}", where=path, hint=hint)
    return path


def existing_file(path: Path, what: str = "file") -> Path:
    """A file that is there and holds something."""
    if existing(path, what).is_dir():
        raise InputError(f"this is a folder, and a {what} is needed", where=path)
    if path.is_file() and path.stat().st_size == 0:
        raise InputError("this file is empty", where=path)
    if not os.access(path, os.R_OK):
        raise InputError("permission denied", where=path, hint="Change its permissions")
    return path


def existing_folder(path: Path, what: str = "folder") -> Path:
    """A folder that is there."""
    if not existing(path, what).is_dir():
        raise InputError(f"this is a file, and a {what} is needed", where=path)
    return path


def run_folder(path: Path) -> Path:
    """A folder of runs that is there; a name that is not may be the beginning of one that is."""
    storage.pull(path)
    near: list[str] = []
    if not path.exists() and path.parent.is_dir():
        there = [one.name for one in sorted(path.parent.iterdir()) if one.is_dir()]
        near = [name for name in there if name.startswith(f"{path.name} ")]  # one for each value that was chosen from
        near = near or get_close_matches(path.name, there, n=3)
    existing(path, "folder of a run", hint=f"Beside it: {', '.join(near)}" if near else None)
    return existing_folder(path, "folder of a run")


def sources(paths: Iterable[Path]) -> list[Path]:
    """Files and folders, of which at least one is there; one that is not fails as an item, and the rest goes on."""
    given = list(paths)
    if given and not any(os.path.lexists(path) for path in given):
        existing(given[0])
    return given


def output_folder(path: Path, option: str = "--out") -> Path:
    """A folder that can be made or written into."""
    if path.exists() and not path.is_dir():
        raise InputError("this is a file, and a folder is needed", where=path, hint=f"Choose another {option}")
    _writable(path, option)
    return path


def output_file(path: Path, option: str = "--out") -> Path:
    """A file that can be made or replaced."""
    if path.is_dir():
        raise InputError("this is a folder, and a file is needed", where=path, hint=f"Choose another {option}")
    _writable(path.parent, option)
    return path


def own_table(path: Path, columns: str, option: str = "--out") -> Path:
    """A table that can be made, or replaced where the one that is there begins with `columns`, as ours do."""
    output_file(path, option)
    storage.pull(path)
    if path.exists() and path.stat().st_size:
        with path.open("rb") as there:
            if there.read(len(columns)).decode(errors="replace") != columns:
                what = f"this file is there already, and none of those that begin with '{columns}'"
                raise InputError(what, where=path, hint=f"Choose another {option}, or remove it first")
    return path


def _writable(folder: Path, option: str) -> None:
    """Whether `folder`, or what of it is there already, can be written into."""
    home = folder.absolute()
    while not home.exists():
        home = home.parent
    if not home.is_dir():
        raise InputError("this is a file, not a folder", where=home, hint=f"Choose another {option}")
    if not os.access(home, os.W_OK | os.X_OK):
        raise InputError("permission denied: cannot write here", where=home, hint=f"Choose another {option}")
