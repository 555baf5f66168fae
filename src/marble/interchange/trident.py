"""TRIDENT: `features` and `coords`, whose attributes say all of the grid; level-0 pixels of the top-left corner."""

from __future__ import annotations

from marble.interchange.attributes import FileLayout, encoder_of_folder, grid_of, text
from marble.interchange.hdf5 import ForeignFile
from marble.interchange.tiles import LevelHints, Tiles


def _fits(file: ForeignFile) -> bool:
    return "features" in file and "patch_size_level0" in file.attributes("coords")


def _read(file: ForeignFile, _hints: LevelHints) -> Tiles:
    named = text(file.attributes("features").get("encoder"))
    return Tiles(
        tool="trident",
        features=file.numbers("features"),
        xy=file.numbers("coords"),
        encoder=named or encoder_of_folder(file.path.parent),
        **grid_of(file.attributes("coords")),
    )


LAYOUT = FileLayout(_fits, _read)
