"""Finding the bags an experiment is about."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from marble import storage
from marble.bags.provenance import Provenance
from marble.bags.store import BagStore, of_whole_slides
from marble.errors import InputError


def find_store(root: Path, magnifications: tuple[float, ...] | None = None, encoder: str | None = None) -> BagStore:
    """The store at `root`, or the one of several below it that holds these magnifications and this encoder."""
    storage.pull(root)
    candidates = [root] if (root / "store.json").exists() else sorted(p.parent for p in root.glob("*/store.json"))
    held = {path: BagStore(path).common() for path in candidates}
    fitting = []
    for path, common in held.items():
        have = tuple(sorted(level.magnification for level in common.levels))
        names = {one.name for one in common.encoders}
        if magnifications is not None and have and have != tuple(sorted(magnifications)):
            continue
        if encoder is not None and names and encoder not in names:
            continue
        fitting.append(path)
    fitting = of_whole_slides(fitting)
    if len(fitting) == 1:
        return BagStore(fitting[0])
    if not candidates:
        raise InputError("no bags here", where=root, hint="Make them with `marble extract` or `marble import`")
    found = "; ".join(f"{path.name} {_content(held[path])}".strip() for path in (fitting or candidates))
    if fitting:
        raise InputError(f"several stores fit: {found}", where=root, hint="Name one of them in `bags.store`")
    asked = [f"magnifications {_numbers(magnifications)}"] if magnifications is not None else []
    asked += [f"encoder {encoder}"] if encoder is not None else []
    hint = "Ask for what a store holds with `bags.magnifications` and `bags.encoder`, or extract it"
    raise InputError(f"no store holds {' and '.join(asked)}: {found}", where=root, hint=hint)


def _content(common: Provenance) -> str:
    """What a store says of itself, in brackets."""
    levels = _numbers([level.magnification for level in common.levels])
    parts = [f"magnifications {levels}"] if levels else []
    parts += [", ".join(sorted({one.name for one in common.encoders}))] if common.encoders else []
    return f"({' of '.join(parts)})" if parts else ""


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
