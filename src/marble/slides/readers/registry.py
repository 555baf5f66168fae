"""Which reader opens which file: each is asked in turn, and the first that knows the file has it.

Adding a format is one file with a reader (:class:`marble.slides.readers.planes.Planes`) and a function that says if
a file is its own, and one line in `READERS`.
"""

from __future__ import annotations

from pathlib import Path

from marble.pointers import pointed_at
from marble.slides.readers.planes import Planes
from marble.slides.readers.preflight import preflight

#: functions `(path, claims) -> Planes | None`, asked in this order; `claims` is what a TIFF says of itself, else None
READERS = (
    "marble.slides.readers.tiff:open_tiff",
    "marble.slides.readers.jpeg_tiles:open_vendor_file",
    "marble.slides.readers.image:open_image",
)


def open_planes(path: Path) -> Planes:
    """The planes of this file, after its structure was looked at; the last reader refuses what nobody knows."""
    claims = preflight(path)
    for place in READERS:
        planes: Planes | None = pointed_at(place)(path, claims)
        if planes is not None:
            return planes
    raise AssertionError("the last reader gives planes or an error")
