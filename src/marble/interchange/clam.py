"""CLAM, and any HDF5 file with features under a usual name.

CLAM's features carry no attributes: those of its `patches` folder are used. Without coordinates, in the file or beside
it, the tiles have no places (see `Tiles.placeless`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from marble.errors import BagError
from marble.interchange.attributes import (
    COORDINATE_NAMES,
    FEATURE_NAMES,
    FileLayout,
    encoder_of_folder,
    grid_of,
    one_encoder,
    text,
)
from marble.interchange.hdf5 import ForeignFile, open_foreign
from marble.interchange.tiles import NO_PLACES, LevelHints, Tiles


def coordinates_beside(path: Path) -> Path | None:
    """The coordinates file that CLAM or TRIDENT keeps in a `patches` folder near the features."""
    folders = (path.parent / "patches", path.parent.parent / "patches", path.parent.parent.parent / "patches")
    names = (f"{path.stem}.h5", f"{path.stem}_patches.h5")
    beside = (folder / name for folder in folders for name in names)
    return next((found for found in beside if found.is_file() and found != path), None)


def looked_for(names: Sequence[str]) -> str:
    """Words for what was looked for in vain."""
    return f"none of {', '.join(COORDINATE_NAMES)} among {', '.join(names) or 'nothing'}"


def _fits(file: ForeignFile) -> bool:
    return file.path.parent.name == "h5_files" or coordinates_beside(file.path) is not None


def _read(file: ForeignFile, hints: LevelHints) -> Tiles:
    name, encoder = _feature_name(file, hints)
    coords = next((name for name in COORDINATE_NAMES if name in file), None)
    about = {**file.attributes(), **(file.attributes(coords) if coords else {})}
    xy = None if coords is None else file.numbers(coords)
    tool = "hdf5"
    companion = coordinates_beside(file.path)
    if companion is not None and grid_of(about).get("extent") is None:
        with open_foreign(companion) as beside:
            about = beside.attributes("coords")
            theirs = beside.numbers("coords")
        if xy is not None and not np.array_equal(np.unique(xy, axis=0), np.unique(theirs, axis=0)):
            raise BagError(f"coordinates differ from those in {companion}", where=file.path)
        xy = theirs if xy is None else xy
        tool = "trident" if "patch_size_level0" in about else "clam"
    elif file.path.parent.name == "h5_files":
        tool = "clam"
    return Tiles(
        tool=tool,
        features=file.numbers(name),
        xy=NO_PLACES if xy is None else xy,
        placeless=None if xy is not None else looked_for(file.datasets),
        unit="um" if text(about.get("unit")) == "um" else "px",
        encoder=text(about.get("encoder")) or encoder or encoder_of_folder(file.path.parent),
        **grid_of(about),
    )


def _feature_name(file: ForeignFile, hints: LevelHints) -> tuple[str, str | None]:
    for name in FEATURE_NAMES:
        if name in file:
            return name, None
    if file.children("features"):
        encoder = one_encoder(file, hints)
        return f"features/{encoder}", encoder
    raise BagError(
        f"no features: none of {', '.join(FEATURE_NAMES)} among {', '.join(file.datasets) or 'nothing'}",
        where=file.path,
        hint="Rename the dataset, or check that this is a file of features",
    )


LAYOUT = FileLayout(_fits, _read)
ANYTHING = FileLayout(lambda _file: True, _read)
