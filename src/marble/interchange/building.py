"""One slide's levels, as other tools laid them, put together into a bag."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from marble.bags.bag import Bag, Level
from marble.errors import BagError
from marble.interchange.audit import AuditRow
from marble.interchange.grids import Boxes, Ints, NestedLevel, Policy, distinct, nest
from marble.interchange.origin import in_one_unit, provenance_of
from marble.interchange.tiles import LevelHints, Tiles


def nested_bag(
    slide_id: str, levels: Sequence[Tiles], hints: Sequence[LevelHints], policy: Policy
) -> tuple[Bag, list[AuditRow]]:
    """One slide's levels, coarsest first, as a bag, with an audit row for each; refusals name the slide."""
    try:
        return _nested_bag(slide_id, in_one_unit(levels), hints, policy)
    except BagError as error:
        raise BagError(error.what, where=error.where or slide_id, hint=error.hint) from None


def _nested_bag(
    slide_id: str, unified: Sequence[Tiles], hints: Sequence[LevelHints], policy: Policy
) -> tuple[Bag, list[AuditRow]]:
    first = [distinct(tiles.xy) for tiles in unified]
    boxes = [Boxes(tiles.xy[rows], _extent(tiles)) for tiles, rows in zip(unified, first, strict=True)]
    nested, origin = nest(boxes, policy)
    rows_of = [unique[level.rows] for unique, level in zip(first, nested, strict=True)]  # rows of the files
    for k in range(1, len(nested)):
        _check_stored_parents(unified[k], unified[k - 1], rows_of[k], rows_of[k - 1], nested[k], k)
    bag = Bag(
        slide_id,
        [
            Level(
                torch.from_numpy(np.ascontiguousarray(tiles.features[rows])),
                torch.from_numpy(level.cells),
                None if level.parent is None else torch.from_numpy(level.parent),
                level.ratio,
            )
            for tiles, rows, level in zip(unified, rows_of, nested, strict=True)
        ],
        provenance_of(slide_id, unified, hints, origin, {"orphans": policy}),
    )
    return bag, _audit(slide_id, unified, hints, first, nested)


def _audit(
    slide_id: str,
    levels: Sequence[Tiles],
    hints: Sequence[LevelHints],
    first: Sequence[Ints],
    nested: Sequence[NestedLevel],
) -> list[AuditRow]:
    rows = []
    for k, level in enumerate(nested):
        below = nested[k + 1].parent if k + 1 < len(nested) else None
        rows.append(
            AuditRow(
                slide_id=slide_id,
                level=k,
                magnification=hints[k].magnification,
                source=levels[k].source,
                tiles=len(levels[k].xy),
                duplicates=len(levels[k].xy) - len(first[k]),
                exact=level.exact if k else None,
                partial=level.partial if k else None,
                orphans=level.orphans if k else None,
                collided=level.collided,
                kept=len(level.rows),
                childless=None if below is None else len(level.rows) - len(np.unique(below)),
                places=levels[k].placeless is None,
            )
        )
    return rows


def _check_stored_parents(
    fine: Tiles, coarse: Tiles, fine_rows: Ints, coarse_rows: Ints, level: NestedLevel, k: int
) -> None:
    """A file that names parents must name those that its coordinates give (by place: duplicates are one tile)."""
    if fine.parent is None:
        return
    stored = np.asarray(fine.parent).ravel()
    whole = stored.shape == (len(fine.xy),) and stored.dtype.kind in "iu"
    if not whole or stored.min() < -1 or stored.max() >= len(coarse.xy):
        raise BagError(f"level {k}: stored parents are not indices of the {len(coarse.xy)} tiles of the level above")
    assert level.parent is not None
    stored = stored[fine_rows]
    named = stored >= 0  # -1: none
    ours = coarse.xy[coarse_rows[level.parent]]
    differ = named & (coarse.xy[stored] != ours).any(axis=1)
    if differ.any():
        row = int(differ.argmax())
        raise BagError(
            f"level {k}: row {int(fine_rows[row])} names parent {int(stored[row])}, but its centre lies in tile "
            f"{int(coarse_rows[level.parent[row]])}"
        )


def _extent(tiles: Tiles) -> float:
    assert tiles.extent is not None
    return tiles.extent
