"""Finding the bags an experiment is about."""

from __future__ import annotations

from pathlib import Path

from marble import storage
from marble.bags.store import BagStore
from marble.errors import InputError


def find_store(root: Path, magnifications: tuple[float, ...] | None = None, encoder: str | None = None) -> BagStore:
    """The store at `root`, or the one of several below it that holds these magnifications and this encoder."""
    storage.pull(root)
    candidates = [root] if (root / "store.json").exists() else sorted(p.parent for p in root.glob("*/store.json"))
    fitting = []
    for path in candidates:
        common = BagStore(path).common()
        have = tuple(sorted(level.magnification for level in common.levels))
        names = {one.name for one in common.encoders}
        if magnifications is not None and have and have != tuple(sorted(magnifications)):
            continue
        if encoder is not None and names and encoder not in names:
            continue
        fitting.append(path)
    if len(fitting) == 1:
        return BagStore(fitting[0])
    if not candidates:
        raise InputError("no bags here", where=root, hint="Make them with `marble extract` or `marble import`")
    found = ", ".join(str(path.name) for path in (fitting or candidates))
    what = "several stores fit" if fitting else f"no store holds magnifications {magnifications}, encoder {encoder}"
    raise InputError(f"{what}: {found}", where=root, hint="Name one of them in bags.store")
