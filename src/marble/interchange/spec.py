"""`ImportSpec`: every choice of an import, and what it says about each level's files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import get_args

from marble.errors import InputError
from marble.interchange.grids import Policy
from marble.interchange.tiles import Anchor, CoordinateUnit, FileHints, LevelHints


@dataclass(frozen=True, kw_only=True)
class ImportSpec(FileHints):
    """How other tools' features become bags; the options of `marble import`.

    Args:
        policy: what to do with fine tiles that lie in no coarse one: `drop` (the paper), or `nearest`.
        extents: side of a tile in level-0 pixels (um if the coordinates are), in the order of the levels as given.
    """

    policy: Policy = "drop"
    extents: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise InputError(f"policy '{self.policy}' is neither drop nor nearest")
        if self.units not in (None, *get_args(CoordinateUnit)):
            raise InputError(f"units '{self.units}' are neither px nor um")
        if self.anchor not in (None, *get_args(Anchor)):
            raise InputError(f"anchor '{self.anchor}' is neither top-left nor centre")
        sizes = (
            ("--tile-px", self.tile_px),
            ("--slide-mpp", self.slide_mpp),
            *(("--extents", e) for e in self.extents or ()),
        )
        for flag, size in sizes:
            if size is not None and not 0 < size < math.inf:
                raise InputError(f"{flag} must be more than 0, got {size:g}")

    def hints(self, magnifications: Sequence[float]) -> list[LevelHints]:
        """What the user says about each level's files; levels in the order of `extents`."""
        if self.no_coordinates and len(magnifications) > 1:
            what = "without coordinates no parents can be found, so only one level can be imported"
            raise InputError(what, hint="Leave out --no-coordinates, or give one --level")
        if self.extents is not None and len(self.extents) != len(magnifications):
            raise InputError(f"{len(self.extents)} extents for {len(magnifications)} levels")
        sides: Sequence[float | None] = self.extents or [None] * len(magnifications)
        shared = {field.name: getattr(self, field.name) for field in fields(FileHints)}
        return [
            LevelHints(magnification=magnification, extent=side, **shared)
            for magnification, side in zip(magnifications, sides, strict=True)
        ]
