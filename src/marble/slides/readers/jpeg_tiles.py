"""JPEG tiles of a pyramidal TIFF (Aperio SVS, generic TIFF), decoded directly.

OpenSlide composes every region through a drawing library, at several times the cost of decoding the tiles. Where all
planes are plain JPEG tiles it is asked what the planes are and which pixel size they have, and the pixels come from
here: bit for bit the same, except that a plane whose scale is not a whole number comes without the sub-pixel shift that
OpenSlide's level-0 coordinates force on it.

A damaged tile must be noticed as OpenSlide notices it: a stream that ends too early is an error there; the decoder used
here goes on without a word and leaves what it has no data for plain grey. So a tile is decoded with 16 rows more
than it has: behind a whole tile the decoder still makes something of the first extra block, from the bits left over; if
the data ended before, that block is grey. Where chroma is halved vertically, extra rows would change the tile's last
row, so there its own last block is looked at instead, and an end within that very block goes unnoticed. OpenSlide is
asked about every tile that looks unusual in any way, and its answer stands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import tifffile

from marble.slides.readers.codestream import has_restarts, jpeg_size, plain_jpeg
from marble.slides.readers.openslide import OpenSlidePlanes
from marble.slides.readers.planes import Mask, Pixels
from marble.slides.readers.segments import Grid, Segments

_VENDORS = ("aperio", "generic-tiff")
_JPEG, _RGB, _YCBCR, _INTERLEAVED = 7, 2, 6, 1  # as TIFF numbers them
_END_OF_IMAGE = b"\xff\xd9"
_BLOCK_PX = 8
_EXTRA_ROWS = 16
_FIRST_EXTRA_BLOCK = np.s_[-14:-10, 2:6]  # blocks without their edges, which chroma upsampling mixes with neighbours
_LAST_BLOCK = np.s_[-6:-2, -6:-2]
_GREY = 128
_MAX_SIDE = 65_535


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

    def _grid(self, plane: int, page: Any) -> Grid:
        across, down = int(page.tilewidth), int(page.tilelength)
        width, height = self.sizes[plane]
        columns = -(-width // across)
        decode_plain = _plain_decoder(across, down, page.jpegtables, is_ycbcr=page.photometric == _YCBCR)

        def decode(stored: bytes, index: int) -> Pixels | None:
            tile = decode_plain(stored)
            if tile is not None:
                return tile
            row, column = divmod(index, columns)
            left, top = column * across, row * down
            pixels, hole = self._known.read(plane, left, top, min(across, width - left), min(down, height - top))
            return pixels if hole is None else None

        return Grid((width, height), (across, down), page.dataoffsets, page.databytecounts, decode)


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


def _plain_decoder(across: int, down: int, tables: bytes | None, *, is_ycbcr: bool) -> Callable[[bytes], Pixels | None]:
    """Decodes a whole, undamaged baseline tile (down, across, 3); gives None for any other."""
    # The file's word on its colours stands, not the stream's: Aperio's streams do not say that they hold RGB.
    colours = "YCBCR" if is_ycbcr else "RGB"

    def decode(stored: bytes) -> Pixels | None:
        claims = plain_jpeg(stored)
        if claims is None or (claims.width, claims.height) != (across, down) or down % claims.mcu_height:
            return None
        if not _has_an_end(stored) or down + _EXTRA_ROWS > _MAX_SIDE:
            return None
        rows, judged = down, _LAST_BLOCK
        if claims.mcu_height == _BLOCK_PX:
            rows, judged = down + _EXTRA_ROWS, _FIRST_EXTRA_BLOCK
            at = claims.height_at
            stored = b"".join((stored[:at], rows.to_bytes(2, "big"), stored[at + 2 :]))
        try:
            pixels = imagecodecs.jpeg8_decode(stored, tables=tables, colorspace=colours, outcolorspace="RGB")
        except Exception:  # the codec's own errors
            return None
        if pixels.shape != (rows, across, 3) or pixels.dtype != np.uint8 or bool((pixels[judged] == _GREY).all()):
            return None
        return np.asarray(pixels[:down])

    return decode


def _has_an_end(stored: bytes) -> bool:
    return stored.endswith(_END_OF_IMAGE) or stored.rstrip(b"\0").endswith(_END_OF_IMAGE)
