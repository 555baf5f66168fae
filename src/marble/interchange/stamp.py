"""STAMP: `feats` in float16 and `coords` in um; the first version without attributes, in units of its own."""

from __future__ import annotations

import numpy as np

from marble.errors import BagError
from marble.interchange.attributes import FileLayout, number, text, whole_number
from marble.interchange.grids import pitch
from marble.interchange.hdf5 import ForeignFile
from marble.interchange.tiles import LevelHints, Tiles

_FIRST_STRIDE = 224  # the first STAMP counted in pixels of tiles that are 224 px and 256 um wide
_FIRST_UM = 256.0


def _fits(file: ForeignFile) -> bool:
    if "feats" not in file or "coords" not in file:
        return False
    about = file.attributes()
    if "stamp_version" in about or "tile_size_um" in about or {"tile_size", "unit"} <= set(about):
        return True
    if about or file.attributes("coords") or file.shape("coords")[1:] != (2,):
        return False
    step = pitch(file.numbers("coords").astype(np.float64))
    return step is not None and round(step) == _FIRST_STRIDE


def _read(file: ForeignFile, _hints: LevelHints) -> Tiles:
    about = file.attributes()
    coords = file.numbers("coords").astype(np.float64)
    first = not about
    unit = "um" if first else str(about.get("unit", "um"))
    if unit not in ("um", "px"):
        raise BagError(f"unit '{unit}' is neither um nor px", where=file.path)
    return Tiles(
        tool="stamp",
        version="1" if first else text(about.get("stamp_version")),
        features=file.numbers("feats"),
        xy=coords * (_FIRST_UM / _FIRST_STRIDE) if first else coords,
        unit="px" if unit == "px" else "um",
        extent=_FIRST_UM if first else number(about.get("tile_size_um", about.get("tile_size"))),
        tile_px=_FIRST_STRIDE if first else whole_number(about.get("tile_size_px")),
        encoder=text(about.get("extractor")),
    )


LAYOUT = FileLayout(_fits, _read)
