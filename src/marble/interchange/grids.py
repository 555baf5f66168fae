"""From boxes on a slide to one nested lattice: pitch, parents, cells.

Other tools lay every magnification's grid on its own, so a fine tile may lie inside a coarse one, stick out of it, or
lie in none. A bag needs more: every tile in a cell of its own, and `parent's cell == cell // ratio`. The rules here:

* a fine tile's parent is the coarse tile whose box holds its centre (of several, the one with the nearest centre);
* a coarsest tile's cell is its place in tile sides from the origin, rounded; a fine tile's cell is counted from its
  parent's corner, and kept inside the parent;
* of tiles that fall into one cell, the one nearest to the cell's centre stays. The others are counted, not hidden.

Coordinates are (x, y) of the top-left corner, in any unit that all levels share; cells are (row, col).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from marble.cells import MAX_RATIO
from marble.errors import BagError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Policy = Literal["drop", "nearest"]

RATIO_TOLERANCE = 0.02
INSIDE_TOLERANCE = 1e-3  # of a fine tile's side: float32 coordinates in um are not exact
MAX_BOXES_IN_ONE = 64  # coarse tiles whose corners lie within one tile side of each other; a grid has one
_BLOCK = 1 << 22  # distances held at once


@dataclass(frozen=True)
class Boxes:
    """The tiles of one level: squares of side `extent` with top-left corners `xy` (N, 2)."""

    xy: Floats
    extent: float

    def __len__(self) -> int:
        return len(self.xy)

    @property
    def centres(self) -> Floats:
        return self.xy + self.extent / 2


@dataclass(frozen=True)
class NestedLevel:
    """What of a level goes into the bag, and what happened to the rest.

    `rows` (T,) index the boxes given, in order of cells; `cells` (T, 2); `parent` (T,) indexes the level above's rows.
    """

    rows: Ints
    cells: Ints
    parent: Ints | None
    ratio: int | None
    exact: int = 0
    partial: int = 0
    orphans: int = 0
    collided: int = 0


def nest(levels: Sequence[Boxes], policy: Policy = "drop") -> tuple[list[NestedLevel], tuple[float, float]]:
    """Put levels, coarsest first, on one lattice; also give the (x, y) of its cell (0, 0)."""
    origin = _origin(levels[0])
    nested = [_coarsest(levels[0], origin)]
    for above, boxes in pairwise(levels):
        nested.append(_finer(boxes, above, nested[-1], policy))
    for k, level in enumerate(nested):
        if len(level.rows) == 0:
            raise BagError(
                f"level {k} is left without a tile: none of its {len(levels[k])} lies in a tile of the level above",
                hint="Check that both levels are of the same slide, in the same unit",
            )
    return nested, (float(origin[0]), float(origin[1]))


def integer_ratio(coarse_extent: float, fine_extent: float) -> int:
    """How many fine tiles lie side by side in a coarse one; refused when that is not a whole number."""
    exact = coarse_extent / fine_extent
    ratio = round(exact)
    if not 1 <= ratio <= MAX_RATIO or abs(exact - ratio) > RATIO_TOLERANCE * ratio:
        raise BagError(
            f"tile sides {coarse_extent:g} and {fine_extent:g} have ratio {exact:.3f}, not a whole number from 1 to "
            f"{MAX_RATIO}",
            hint="Levels must be tiled so that whole fine tiles fill a coarse one, for example 256 px at 10x and 40x",
        )
    return ratio


def containing(points: Floats, boxes: Boxes) -> Ints:
    """(N,) the box that holds each point (left and top edges belong to it), -1 for none.

    Of several boxes the one with the nearest centre is taken, then the first. Boxes are filed under the square of a
    regular grid their corner lies in; those that can hold a point have their corner in one of four squares.
    """
    best = np.full(len(points), -1, np.int64)
    nearest = np.full(len(points), np.inf)
    keys = _square_keys(np.floor(boxes.xy / boxes.extent))
    order = np.argsort(keys, kind="stable")
    filed = keys[order]
    squares = np.floor(points / boxes.extent)
    for step in ((0, 0), (-1, 0), (0, -1), (-1, -1)):
        wanted = _square_keys(squares + step)
        first, last = np.searchsorted(filed, wanted, "left"), np.searchsorted(filed, wanted, "right")
        most = int((last - first).max(initial=0))
        if most > MAX_BOXES_IN_ONE:
            raise BagError(f"{most} tiles overlap in one place; at most {MAX_BOXES_IN_ONE} are expected of a grid")
        for nth in range(most):
            here = (first + nth < last).nonzero()[0]
            candidate = order[first[here] + nth]
            offset = points[here] - boxes.xy[candidate]
            distance = ((offset - boxes.extent / 2) ** 2).sum(axis=1)
            inside = ((offset >= 0) & (offset < boxes.extent)).all(axis=1)
            closer = (distance < nearest[here]) | ((distance == nearest[here]) & (candidate < best[here]))
            take = inside & closer
            best[here[take]], nearest[here[take]] = candidate[take], distance[take]
    return best


def nearest_box(points: Floats, boxes: Boxes) -> Ints:
    """(N,) the box whose centre is nearest to each point; of equals the first."""
    found = np.empty(len(points), np.int64)
    rows = max(1, _BLOCK // max(1, len(boxes)))
    for start in range(0, len(points), rows):
        block = points[start : start + rows]
        distance = ((block[:, None] - boxes.centres[None]) ** 2).sum(axis=2)  # (rows, boxes)
        found[start : start + rows] = distance.argmin(axis=1)
    return found


def pitch(xy: Floats) -> float | None:
    """The grid's step, from the coordinates alone; without overlap it is the tile's side.

    It is the smallest distance between neighbours in a row or column that at least a tenth of them have and of which
    nine in ten are whole multiples (contours with grids of their own give a few odd distances). None if there is none.
    """
    steps = np.concatenate([_steps(xy[:, 0], xy[:, 1]), _steps(xy[:, 1], xy[:, 0])])
    rounded = np.round(steps, 1)  # um as float32 are not exact
    values, counts = np.unique(rounded, return_counts=True)
    for value in values[counts >= len(steps) / 10]:
        step = float(np.median(steps[rounded == value]))
        multiples = steps / step
        if (np.abs(multiples - np.round(multiples)) <= RATIO_TOLERANCE).mean() >= 0.9:
            return step
    return None


def distinct(xy: Floats) -> Ints:
    """Row numbers, ascending, of the first tile at every place."""
    _, first = np.unique(xy, axis=0, return_index=True)
    return np.sort(first).astype(np.int64)


def _steps(along: Floats, line: Floats) -> Floats:
    """Distances between neighbours with the same `line` coordinate."""
    order = np.lexsort((along, line))
    along, line = along[order], line[order]
    gaps: Floats = np.diff(along)[np.diff(line) == 0]
    return np.asarray(gaps[gaps > 0])


def _origin(boxes: Boxes) -> Floats:
    """(0, 0) when the grid starts there, else the smallest x and y."""
    places = boxes.xy / boxes.extent
    if np.abs(places - np.round(places)).max() <= INSIDE_TOLERANCE and boxes.xy.min() >= 0:
        return np.zeros(2)
    lowest: Floats = boxes.xy.min(axis=0)
    return lowest


def _coarsest(boxes: Boxes, origin: Floats) -> NestedLevel:
    place = np.round((boxes.xy - origin) / boxes.extent)  # (N, 2) (x, y) in tiles
    off = boxes.xy - (origin + place * boxes.extent)
    keep = _one_per_cell(place, off, boxes.xy)
    cells = place[keep][:, ::-1].astype(np.int64)
    return NestedLevel(keep, cells, None, None, collided=len(boxes) - len(keep))


def _finer(boxes: Boxes, above: Boxes, above_level: NestedLevel, policy: Policy) -> NestedLevel:
    ratio = integer_ratio(above.extent, boxes.extent)
    coarse = Boxes(above.xy[above_level.rows], above.extent)
    parent = containing(boxes.centres, coarse)
    orphan = parent < 0
    if policy == "nearest" and orphan.any():
        parent[orphan] = nearest_box(boxes.centres[orphan], coarse)
    rows = (parent >= 0).nonzero()[0]
    parent, orphan = parent[rows], orphan[rows]
    offset = boxes.xy[rows] - coarse.xy[parent]  # (T, 2) from the parent's corner
    sticks_out = np.maximum(-offset, offset + boxes.extent - above.extent).max(axis=1, initial=0)
    exact = int(((sticks_out <= INSIDE_TOLERANCE * boxes.extent) & ~orphan).sum())
    step = above.extent / ratio
    inner = np.clip(np.round(offset / step), 0, ratio - 1)
    place = above_level.cells[parent][:, ::-1] * ratio + inner  # (T, 2) (x, y) in tiles
    keep = _one_per_cell(place, offset + boxes.extent / 2 - (inner + 0.5) * step, boxes.xy[rows])
    return NestedLevel(
        rows=rows[keep],
        cells=place[keep][:, ::-1].astype(np.int64),
        parent=parent[keep],
        ratio=ratio,
        exact=exact,
        partial=int((~orphan).sum()) - exact,
        orphans=len(boxes) - int((~orphan).sum()),
        collided=len(rows) - len(keep),
    )


def _one_per_cell(place: Floats, off: Floats, xy: Floats) -> Ints:
    """Rows to keep, in order of cells: in every cell the tile least off its centre, then the first by (y, x)."""
    distance = np.round((off**2).sum(axis=1), 6)
    order = np.lexsort((xy[:, 0], xy[:, 1], distance, place[:, 0], place[:, 1]))
    placed = place[order]
    first = np.ones(len(order), bool)
    first[1:] = (placed[1:] != placed[:-1]).any(axis=1)
    return order[first].astype(np.int64)


def _square_keys(squares: Floats) -> Ints:
    whole = squares.astype(np.int64)
    return np.asarray(whole[:, 1] * (1 << 32) + whole[:, 0])
