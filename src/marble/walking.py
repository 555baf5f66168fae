"""All there is below a folder, links to folders too: archives and clusters are put together of such links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def below(folder: str | Path) -> Iterator[Path]:
    """Everything below, sorted; what links to folders lead to comes last, each folder once, so no loop."""
    seen: set[str] = set()
    waiting = [Path(folder)]
    while waiting:
        found: list[Path] = []
        for root, folders, names in os.walk(waiting.pop(0)):
            real = os.path.realpath(root)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            found += (Path(root, name) for name in (*folders, *names))
        waiting += sorted(path for path in found if path.is_symlink() and path.is_dir())
        yield from sorted(found)


def named(folder: str | Path, name: str) -> list[Path]:
    """The files of that name below a folder, sorted."""
    return sorted(path for path in below(folder) if path.name == name)
