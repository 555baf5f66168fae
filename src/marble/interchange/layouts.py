"""The HDF5 layouts that are read: one file per tool, one line each here.

Which one fits is seen from the names in the file, in this order; the last, `hdf5`, takes any file with features under a
usual name. `LevelHints.layout` overrides the guess.
"""

from __future__ import annotations

from pathlib import Path

from marble.errors import InputError
from marble.interchange import atlaspatch, clam, stamp, trident, zoommil
from marble.interchange.attributes import FileLayout
from marble.interchange.hdf5 import open_foreign
from marble.interchange.tiles import LevelHints, Tiles

LAYOUTS: dict[str, FileLayout] = {
    "trident": trident.LAYOUT,
    "atlaspatch": atlaspatch.LAYOUT,
    "stamp": stamp.LAYOUT,
    "zoommil": zoommil.LAYOUT,
    "clam": clam.LAYOUT,
    "hdf5": clam.ANYTHING,
}


def read_hdf5(path: Path, hints: LevelHints) -> Tiles:
    """The tiles of one slide at one level, by whichever layout fits."""
    if hints.layout is not None and hints.layout not in LAYOUTS:
        raise InputError(f"unknown layout '{hints.layout}'", hint=f"Known: {', '.join((*LAYOUTS, 'slideflow'))}")
    with open_foreign(path) as file:
        name = hints.layout or next(name for name, layout in LAYOUTS.items() if layout.fits(file))
        return LAYOUTS[name].read(file, hints)
