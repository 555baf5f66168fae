"""AtlasPatch: five columns of `coords`, and the features of each encoder in a group `features`."""

from __future__ import annotations

from marble.interchange.attributes import FileLayout, grid_of, one_encoder
from marble.interchange.hdf5 import ForeignFile
from marble.interchange.tiles import LevelHints, Tiles


def _fits(file: ForeignFile) -> bool:
    return "coords" in file and file.shape("coords")[1:] == (5,) and bool(file.children("features"))


def _read(file: ForeignFile, hints: LevelHints) -> Tiles:
    encoder = one_encoder(file, hints)
    coords = file.numbers("coords")  # (N, 5) x, y, width and height as read, level of the file
    return Tiles(
        tool="atlaspatch",
        features=file.numbers(f"features/{encoder}"),
        xy=coords[:, :2],
        encoder=encoder,
        **grid_of({**file.attributes("coords"), **file.attributes()}),
    )


LAYOUT = FileLayout(_fits, _read)
