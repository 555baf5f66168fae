"""JPEG tiles of a pyramidal TIFF (Aperio SVS, generic TIFF), decoded directly.

OpenSlide composes every region through a drawing library, at several times the cost of decoding the tiles. Where all
planes are plain JPEG tiles it is asked what the planes are and which pixel size they have, and the pixels come from
here: bit for bit the same, except that a plane whose scale is not a whole number comes without the sub-pixel shift that
OpenSlide's level-0 coordinates force on it.

A damaged tile must be noticed as OpenSlide notices it, and better: see `jpeg`. Where that cannot judge a tile OpenSlide
is asked, and its answer stands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from marble.slides.readers.codestream import has_restarts, jpeg_size
from marble.slides.readers.jpeg import Whole, decode_plain
from marble.slides.readers.openslide import OpenSlidePlanes, openslide_vendor
from marble.slides.readers.planes import Mask, Pixels, Planes
from marble.slides.readers.preflight import TiffClaims
from marble.slides.readers.segments import SegmentGrid, Segments

_VENDORS = ("aperio", "generic-tiff")
_JPEG, _RGB, _YCBCR, _INTERLEAVED = 7, 2, 6, 1  # as TIFF numbers them


class JpegTilePlanes:
    """The planes OpenSlide found, read tile by tile. Safe to use from several threads."""

    def __init__(self, path: Path, known: OpenSlidePlanes, pages: list[Any]) -> None:
        self.sizes, self.clues, self.vendor = known.sizes, known.clues, known.vendor
        self._known = known
        self._segments = Segments(path, [self._grid(plane, page) for plane, page in enumerate(pages)])

    def read(self, plane: int, x: int, y: int, width: int, height: int) -> tuple[Pixels, Mask | None]:
        return self._segments.read(plane, x, y, width, height)

    def close(self) -> None:
        self._segments.close()
        self._known.close()

    def _grid(self, plane: int, page: Any) -> SegmentGrid:
        across, down = int(page.tilewidth), int(page.tilelength)
        width, height = self.sizes[plane]
        columns = -(-width // across)
        is_ycbcr = page.photometric == _YCBCR

        def decode(stored: bytes, index: int) -> Pixels | None:
            tile, verdict = decode_plain(stored, page.jpegtables, (across, down), is_ycbcr=is_ycbcr)
            if verdict is not Whole.UNSURE:
                return tile
            row, column = divmod(index, columns)
            left, top = column * across, row * down
            pixels, hole = self._known.read(plane, left, top, min(across, width - left), min(down, height - top))
            return pixels if hole is None else None

        return SegmentGrid((width, height), (across, down), page.dataoffsets, page.databytecounts, decode)


def jpeg_tiles(path: Path, known: OpenSlidePlanes) -> JpegTilePlanes | None:
    """A direct reader, which then owns `known`, if every plane is made of JPEG tiles; None if OpenSlide has to read."""
    if known.vendor not in _VENDORS:
        return None
    try:
        with tifffile.TiffFile(path) as tiff:
            directories: list[Any] = list(tiff.pages)
            tiled = [page for page in directories if page.is_tiled]
            found = [[page for page in tiled if (page.imagewidth, page.imagelength) == size] for size in known.sizes]
            if any(len(pages) != 1 or not _is_direct(pages[0], known.vendor) for pages in found):
                return None
    except Exception:  # tifffile raises whatever it stumbles over; OpenSlide did not, so the file is OpenSlide's
        return None
    return JpegTilePlanes(path, known, [pages[0] for pages in found])


def _is_direct(page: Any, vendor: str) -> bool:
    tables = page.jpegtables
    return bool(
        page.compression == _JPEG
        and page.photometric in (_RGB, _YCBCR)
        and page.samplesperpixel == 3
        and page.planarconfig == _INTERLEAVED
        and page.imagedepth == 1
        and page.dtype == np.uint8
        and (tables is None or (jpeg_size(tables) is None and not has_restarts(tables)))
        # OpenSlide draws the tiles an Aperio file lacks from its finer planes.
        and (vendor != "aperio" or 0 not in page.databytecounts)
    )


def open_vendor_file(path: Path, claims: TiffClaims | None) -> Planes | None:
    """Whatever OpenSlide knows, its plain JPEG tiles without a detour."""
    del claims
    if openslide_vendor(path) is None:
        return None
    planes = OpenSlidePlanes(path)
    return jpeg_tiles(path, planes) or planes
