"""TIFFs that OpenSlide does not read in full (OME-TIFF keeps its pyramid in SubIFDs; plain striped TIFF).

tifffile gives directories and codecs; tiles are fetched one by one by `segments`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from marble.errors import SlideError
from marble.slides.mpp import PixelSizeClues, tiff_resolution
from marble.slides.readers.codestream import jpeg2000_is_whole, jpeg2000_size, jpeg_size
from marble.slides.readers.jpeg import Whole, judge
from marble.slides.readers.ome import Ome
from marble.slides.readers.openslide import GENERIC, openslide_vendor
from marble.slides.readers.planes import WHITE, Mask, Pixels
from marble.slides.readers.preflight import TiffClaims
from marble.slides.readers.segments import SegmentGrid, Segments

# Codecs that stop at the tile's own size: none, LZW, Deflate, PackBits, Zstandard. The others are asked first.
_BOUNDED = frozenset({1, 5, 8, 32946, 32773, 50000})
_SIZE_OF = {7: jpeg_size, 33003: jpeg2000_size, 33005: jpeg2000_size, 34712: jpeg2000_size}
_JPEG = 7
_RGB, _YCBCR = 2, 6  # as TIFF numbers kinds of colour
_PREMULTIPLIED, _ALPHA = 1, 2  # ... and what a fourth sample may mean
_OPAQUE = 255

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # its complaints about damage come back as our own errors


class TiffPlanes:
    """A TIFF's first image and its SubIFDs, or a single plain image. Safe to use from several threads."""

    def __init__(self, path: Path, ome: Ome | None) -> None:
        self._path = path
        try:
            with tifffile.TiffFile(path) as tiff:
                first = tiff.pages[0]
                pages = sorted([first, *(first.pages or ())], key=lambda page: -page.imagewidth)
                self.clues = _clues(first, ome)
                self.vendor = "ome-tiff" if tiff.is_ome else "tiff"
                for page in pages:
                    self._require_rgb(page)
                    self._require_known_codec(page)
                    page.decode  # noqa: B018  built on first use, and only while the file is open
        except SlideError:
            raise
        except Exception as error:  # tifffile raises whatever the damage made it stumble over
            raise SlideError(f"its TIFF structure cannot be read: {error}", where=path) from None
        self.sizes = tuple((int(page.imagewidth), int(page.imagelength)) for page in pages)
        self._segments = Segments(path, [_grid(page) for page in pages])

    def read(self, plane: int, x: int, y: int, width: int, height: int) -> tuple[Pixels, Mask | None]:
        return self._segments.read(plane, x, y, width, height)

    def close(self) -> None:
        self._segments.close()

    def _require_rgb(self, page: Any) -> None:
        rgb = page.samplesperpixel in (3, 4) and page.planarconfig == 1 and page.dtype == np.uint8
        if not rgb or getattr(page, "imagedepth", 1) != 1:
            raise SlideError(
                f"not an 8-bit RGB picture ({page.samplesperpixel} samples of {page.dtype})",
                where=self._path,
                hint="Only brightfield slides are supported; export as 8-bit RGB",
            )
        # Of JPEG alone the codec turns YCbCr into RGB; any other kind would be shown as if it were RGB.
        colours, codec = int(page.photometric), int(page.compression)
        if colours != _RGB and (colours, codec) != (_YCBCR, _JPEG):
            raise SlideError(
                f"its colours are stored as {getattr(page.photometric, 'name', colours)}, not as RGB",
                where=self._path,
                hint="Export it as 8-bit RGB",
            )

    def _require_known_codec(self, page: Any) -> None:
        codec = int(page.compression)
        if codec not in _BOUNDED and codec not in _SIZE_OF:
            raise SlideError(
                f"tiles compressed by method {codec} are not supported",
                where=self._path,
                hint="Rewrite the file, for example with `vips tiffsave --compression jpeg`",
            )
        if page.jpegtables is not None and jpeg_size(page.jpegtables) is not None:
            raise SlideError("its JPEG tables hold a picture, which no scanner writes", where=self._path)


def _grid(page: Any) -> SegmentGrid:
    width, height = int(page.imagewidth), int(page.imagelength)
    segment = (int(page.tilewidth), int(page.tilelength)) if page.is_tiled else (width, int(page.rowsperstrip))
    return SegmentGrid((width, height), segment, page.dataoffsets, page.databytecounts, _decoder(page, *segment))


def _decoder(page: Any, across: int, down: int) -> Callable[[bytes, int], Pixels | None]:
    codec = int(page.compression)
    transparency = int(page.extrasamples[0]) if page.samplesperpixel == 4 and page.extrasamples else 0

    def fits(stored: bytes) -> bool:
        """Whether a compressed tile or strip claims no more pixels than it may have."""
        if codec in _BOUNDED:
            return True
        size = _SIZE_OF[codec](stored)
        return size is not None and size[0] <= across and size[1] <= down

    def decode(stored: bytes, index: int) -> Pixels | None:
        if not fits(stored) or not _is_whole(codec, stored, page.jpegtables):
            return None
        try:
            data, _, shape = page.decode(stored, index, jpegtables=page.jpegtables)
            return _on_white(data[0, : shape[1], : shape[2]], transparency)
        except Exception:  # a codec's own errors: the tile is marked missing, and counted by whoever reads
            return None

    return decode


def _on_white(samples: Pixels, transparency: int) -> Pixels:
    """(h, w, 3) colours of (h, w, 3 or 4) samples; what is transparent is white, as in any other picture."""
    colours = samples[..., :3]
    if transparency not in (_PREMULTIPLIED, _ALPHA) or int(samples[..., 3].min()) == _OPAQUE:
        return np.ascontiguousarray(colours)
    share = samples[..., 3:].astype(np.float32) / _OPAQUE  # (h, w, 1)
    shown = colours if transparency == _PREMULTIPLIED else colours * share
    return np.asarray(np.clip(np.rint(shown + WHITE * (1 - share)), 0, WHITE), np.uint8)


def _is_whole(codec: int, stored: bytes, tables: bytes | None) -> bool:
    """Whether no data is lacking, as far as the codec itself would go on without it."""
    if codec == _JPEG:
        return judge(stored, tables) is not Whole.NO
    return codec in _BOUNDED or jpeg2000_is_whole(stored)


def _clues(page: Any, ome: Ome | None) -> PixelSizeClues:
    fields = list(ome.pixel_size()) if ome is not None else []
    values = {
        name: page.tags[name].value for name in ("XResolution", "YResolution", "ResolutionUnit") if name in page.tags
    }
    if len(values) == 3:
        unit = {2: "inch", 3: "centimeter"}.get(int(values["ResolutionUnit"]))
        tags = tiff_resolution(_ratio(values["XResolution"]), _ratio(values["YResolution"]), unit)
        if tags is not None:
            fields.append(tags)
    return PixelSizeClues(tuple(fields), None if ome is None else ome.objective())


def _ratio(value: tuple[int, int]) -> str:
    return repr(value[0] / value[1]) if value[1] else "nan"


def open_tiff(path: Path, claims: TiffClaims | None) -> TiffPlanes | None:
    """A TIFF that OpenSlide does not know, or of which it would see the finest plane alone."""
    if claims is None:
        return None
    vendor = openslide_vendor(path)
    if vendor not in (None, GENERIC):
        return None
    ome = Ome.of(claims.description)
    if ome is not None:
        ome.require_one_picture(path)
    claims.require_no_stack(path)
    return TiffPlanes(path, ome) if vendor is None or claims.has_sub_directories else None
