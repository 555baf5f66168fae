"""Folders as users have them: good slides among everything that may lie beside them, in any order."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: names that are legal and unkind: markup, a line's end, an option, quotes, a spreadsheet's formula, right-to-left
NAMES = (
    "plain", "two words", "[bold]x[]", "line\nend", "-rf", "a'b\"c", "=1+1", "x\u202ey", "\u00e9t\u00e9", "a;b,c",
    "%s%d", "a.b.c", "store", "n" * 200, "\u65e5\u672c", "tab\tbed", "C\\evil", "NA", "1e5",
)  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One thing in a folder, and the statuses it may end with."""

    path: Path
    expected: frozenset[str]

    @property
    def is_good(self) -> bool:
        return self.expected == {"ok"}


def drawn_folder(folder: Path, good: Sequence[Path], blank: Path, rng: random.Random, count: int = 6) -> list[Item]:
    """Fill `folder` with `count` things or pairs of them; at least one is good."""
    folder.mkdir(parents=True)
    kinds: list[str] = [rng.choice(list(_MAKE)) for _ in range(count - 1)] + ["good"]
    rng.shuffle(kinds)
    items: list[Item] = []
    for number, kind in enumerate(kinds):
        name = f"{rng.choice('azAZ09')}{number}-{rng.choice(NAMES)}"[:200]
        if rng.random() < 0.3:
            name = f"{rng.choice(NAMES)}{number}"[-200:]
        elif "\\" in name:  # what follows it is the id, as of a Windows path: without a number they would be twins
            name += str(number)
        items += _MAKE[kind](folder, name, rng.choice(list(good)) if kind != "blank" else blank, rng)
    return items


def _good(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    path = folder / f"{name}.tiff"
    shutil.copyfile(source, path)
    return [Item(path, frozenset({"ok"}))]


def _blank(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    path = folder / f"{name}.tiff"
    shutil.copyfile(source, path)
    return [Item(path, frozenset({"excluded"}))]


def _empty(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    (folder / f"{name}{rng.choice(('.svs', '.tiff', '.ndpi'))}").touch()
    return _bad(folder, name)


def _truncated(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    data = source.read_bytes()
    (folder / f"{name}.tiff").write_bytes(data[: rng.randrange(1, len(data) - 1)])
    return _bad(folder, name)


def _noise(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    (folder / f"{name}{rng.choice(('.svs', '.mrxs', '.czi', '.dcm', '.vms'))}").write_bytes(rng.randbytes(5000))
    return _bad(folder, name)


def _twins(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    items = []
    for below in ("x", "y"):
        path = folder / f"{below}-{name[:20]}".replace("\\", "") / f"{name}.tiff"
        path.parent.mkdir()
        shutil.copyfile(source, path)
        items.append(Item(path, frozenset({"failed"})))
    return items


def _folder(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    (folder / f"{name}.svs").mkdir()
    return _bad(folder, name)


def _dangling(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    (folder / f"{name}.svs").symlink_to(folder / "nowhere.svs")
    return _bad(folder, name)


def _loop(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    path = folder / f"{name}.svs"
    path.symlink_to(path)
    return _bad(folder, name)


def _pipe(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    os.mkfifo(folder / f"{name}{rng.choice(('.svs', '.dcm'))}")
    return _bad(folder, name)


def _not_utf8(folder: Path, name: str, source: Path, rng: random.Random) -> list[Item]:
    path = Path(os.fsdecode(os.fsencode(folder / name[:20]) + b"\xff.tiff"))
    shutil.copyfile(source, path)
    return [Item(path, frozenset({"failed"}))]


def _bad(folder: Path, name: str) -> list[Item]:
    made = [path for path in folder.iterdir() if path.name.startswith(f"{name}.")]
    return [Item(path, frozenset({"failed"})) for path in made]


_MAKE: dict[str, Callable[[Path, str, Path, random.Random], list[Item]]] = {
    "good": _good, "blank": _blank, "empty": _empty, "truncated": _truncated, "noise": _noise, "twins": _twins,
    "folder": _folder, "dangling": _dangling, "loop": _loop, "pipe": _pipe, "not utf-8": _not_utf8,
}  # fmt: skip
