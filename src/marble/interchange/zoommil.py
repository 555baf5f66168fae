"""ZoomMIL: magnifications in the names of the datasets, places as indices or as names `row_column_...`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from marble.errors import BagError
from marble.interchange.attributes import FileLayout
from marble.interchange.hdf5 import Array, ForeignFile
from marble.interchange.tiles import LevelHints, Tiles
from marble.magnification import mpp_at


def is_zoommil(file: ForeignFile) -> bool:
    """Whether the names of the datasets hold magnifications, as ZoomMIL's do."""
    return any(name.endswith("x_patches") and name.replace("x_patches", "x_coords") in file for name in file.datasets)


def _read(file: ForeignFile, hints: LevelHints) -> Tiles:
    features, coords = (f"{hints.magnification:g}x_{what}" for what in ("patches", "coords"))
    if features not in file or coords not in file:
        raise BagError(f"no '{features}' and '{coords}' among {file.datasets}", where=file.path)
    rows = _row_and_column(file.numbers(coords), file.path)
    # Cells of this magnification's own grid, as um at the nominal pixel size: levels then nest by value.
    side = (hints.tile_px or 256) * mpp_at(hints.magnification)
    return Tiles(tool="zoommil", features=file.numbers(features), xy=rows[:, ::-1] * side, unit="um", extent=side)


def _row_and_column(values: Array, path: Path) -> Array:
    """(N, 2) from indices, or from names that begin with `row_column_`."""
    if values.dtype.kind != "S":
        return values[:, :2].astype(np.float64)
    try:
        return np.array([[int(part) for part in name.decode().split("_")[:2]] for name in values.ravel()], np.float64)
    except (ValueError, UnicodeDecodeError) as error:
        raise BagError(f"tile names do not begin with row_column: {error}", where=path) from None


LAYOUT = FileLayout(is_zoommil, _read)
