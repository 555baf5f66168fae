"""Files that hold all levels of a slide in groups, coarsest first.

    level0/{features,coords}, level1/{features,coords,parent}   coordinates in pixels of each level's own grid
    levels/0/..., levels/1/...                                  coordinates in level-0 pixels, as `marble export` writes

A stored `parent` is compared with the one that the coordinates give; a file whose two disagree is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marble.errors import BagError
from marble.interchange.attributes import grid_of, number, text
from marble.interchange.grids import pitch
from marble.interchange.hdf5 import ForeignFile, open_foreign
from marble.interchange.tiles import LevelHints, Tiles


def read_multilevel(path: Path, hints: Sequence[LevelHints]) -> list[Tiles]:
    """All levels of one slide, coarsest first, in coordinates of the finest level's plane or of level 0."""
    with open_foreign(path) as file:
        groups = level_groups(file)
        if len(groups) != len(hints):
            given = ", ".join(f"{one.magnification:g}x" for one in hints)
            raise BagError(f"holds {len(groups)} levels, but {given} were given", where=path)
        if groups[0].startswith("levels/"):
            return [_level0_plane(file, group) for group in groups]
        return [_own_grid(file, group, k, hints) for k, group in enumerate(groups)]


def level_groups(file: ForeignFile) -> list[str]:
    """Names of the groups that hold a level each, coarsest first."""
    for pattern in ("level{}", "levels/{}"):
        found: list[str] = []
        while all(f"{pattern.format(len(found))}/{name}" in file for name in ("features", "coords")):
            found.append(pattern.format(len(found)))
        if found:
            return found
    return []


def _own_grid(file: ForeignFile, group: str, k: int, hints: Sequence[LevelHints]) -> Tiles:
    coords = file.numbers(f"{group}/coords").astype(np.float64)
    about = file.attributes()
    scale = _whole_scale(hints[-1].magnification, hints[k].magnification, file.path)
    side = number(about.get("tile")) or pitch(coords)
    if side is None:
        raise BagError(f"the tile size of '{group}' is not in the file (attribute 'tile')", where=file.path)
    return Tiles(
        tool="multilevel",
        features=file.numbers(f"{group}/features"),
        xy=coords * scale,
        extent=side * scale,
        tile_px=round(side),
        encoder=text(about.get("encoder")),
        slide_mpp=_finest_mpp(about, hints),
        parent=_parent(file, group),
    )


def _level0_plane(file: ForeignFile, group: str) -> Tiles:
    return Tiles(
        tool="multilevel",
        features=file.numbers(f"{group}/features"),
        xy=file.numbers(f"{group}/coords"),
        encoder=text(file.attributes(f"{group}/features").get("encoder")),
        parent=_parent(file, group),
        **grid_of(file.attributes(f"{group}/coords")),
    )


def _parent(file: ForeignFile, group: str) -> Any:
    return file.numbers(f"{group}/parent") if f"{group}/parent" in file else None


def _whole_scale(finest: float, own: float, path: Path) -> int:
    scale = finest / own
    if abs(scale - round(scale)) > 0.02 * scale:
        raise BagError(f"magnifications {own:g} and {finest:g} have no whole ratio", where=path)
    return round(scale)


def _finest_mpp(about: dict[str, Any], hints: Sequence[LevelHints]) -> float | None:
    """The finest level's um per pixel, if the file gives one per level and they fit the magnifications."""
    values = np.atleast_1d(about.get("mpp", ()))
    if (
        len(values) != len(hints)
        or values.dtype.kind not in "iuf"
        or not np.isfinite(values).all()
        or values.min() <= 0
    ):
        return None
    wanted = np.array([hints[-1].magnification / one.magnification for one in hints])
    fits = np.abs(values / values[-1] / wanted - 1).max() <= 0.02
    return float(values[-1]) if fits else None
