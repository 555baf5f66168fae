"""Leaving fine tiles unread: between two levels somebody may say which branches of the slide are worth going on with.

Who that is, extraction does not know (`marble.prediction` has the one that asks a trained run). A tile that is not kept
is dropped with all below it, and nothing of it is read any more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from marble.bags import Bag, Level
from marble.bags.store import ROUTED
from marble.extract.pipeline import LevelTokens
from marble.files import sha256_bytes
from marble.slides.lattice import Pyramid
from marble.specs import canonical_json


class Chooser(Protocol):
    """Decides, level by level, which branches are embedded; it travels to the process that does the work."""

    def identity(self) -> dict[str, Any]:
        """Everything that its choices depend on, as plain JSON: bags chosen otherwise go to another folder."""

    def keep(self, seen: Bag, below: NDArray[np.int64], total: int, depth: int) -> NDArray[np.bool_]:
        """(T,) which of the finest tiles of `seen` are gone on with.

        Args:
            seen: the levels embedded so far, in order of cells.
            below: (T,) how many tiles of the slide's finest level lie below each.
            total: tiles of the finest level in the whole lattice.
            depth: levels of the lattice.
        """


def folder_suffix(chooser: Chooser | None) -> str:
    """What a store's name has at its end if its bags hold chosen branches only."""
    if chooser is None:
        return ""
    return f"{ROUTED}{sha256_bytes(canonical_json(chooser.identity()))[:12]}"


def chosen(
    chooser: Chooser, slide_id: str, pyramid: Pyramid, levels: list[Level], last: LevelTokens, level: int
) -> LevelTokens:
    """The level just encoded, with the tiles that are not gone on with marked as if they had not been encoded."""
    if not last.encoded.any():
        return last
    below = finest_below(pyramid, level)[last.encoded]
    keep = chooser.keep(Bag(slide_id, levels), below, len(pyramid.cells[-1]), pyramid.depth)
    encoded = last.encoded.copy()
    encoded[np.flatnonzero(encoded)[~keep]] = False
    return replace(last, encoded=encoded)


def finest_below(pyramid: Pyramid, level: int) -> NDArray[np.int64]:
    """(T_level,) how many tiles of the finest level lie below each tile."""
    count = np.ones(len(pyramid.cells[-1]), np.int64)
    for k in range(pyramid.depth - 1, level, -1):
        parent = pyramid.parents[k]
        assert parent is not None
        above = np.zeros(len(pyramid.cells[k - 1]), np.int64)
        np.add.at(above, parent, count)
        count = above
    return count
