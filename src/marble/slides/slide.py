"""`Slide`: any supported file as one picture in level-0 pixels.

The file's own pyramid never shows: a read names a box in level-0 pixels and the size wanted, and the reader takes it
from the coarsest plane that is fine enough. A plane within 0.5 % of the asked scale counts as having it.

Decisions: outside the picture is white. Pixels the file lacks or that cannot be decoded are white too, and
true in `Region.missing`; they are never black, and whoever uses them decides how many are too many. A plane whose size
is an integer division of level 0 up to rounding is taken as exactly that division (8942 / 2236 is 4, not 3.99906).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import cv2
import numpy as np

from marble.errors import SlideError
from marble.identifiers import slide_id_of
from marble.slides.mpp import PixelSize, pixel_size
from marble.slides.readers.elsewhere import ElsewherePlanes, ReadingDesk
from marble.slides.readers.planes import WHITE, Mask, Pixels, Planes
from marble.slides.readers.preflight import MAX_AREA_PX
from marble.slides.readers.registry import open_planes

MAX_OUT_PX = 1 << 26  # of one read: 8192 x 8192
MAX_SOURCE_PX = 1 << 30  # decoded for one read
_BLOCK_PX = 4096
_SAME_SCALE = 1.005


def require_file(path: Path) -> None:
    """A file that ends when it is read to its end: no folder, pipe, device, nor a link to nothing."""
    if path.is_file():
        return
    if not os.path.lexists(path):
        raise SlideError("cannot be read: no such file", where=path)
    if not path.exists():
        raise SlideError("a link to a file that is not there", where=path, hint="Copy the slide itself")
    what = "a folder, not a slide" if path.is_dir() else "not a regular file"
    raise SlideError(what, where=path, hint="Give the slide's own file")


class Box(NamedTuple):
    """A rectangle in level-0 pixels; it may reach outside the picture."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Region:
    """What a read gives.

    Args:
        pixels: (h, w, 3) uint8 RGB.
        missing: (h, w) true where the file holds no pixels or they cannot be decoded (white there); None if none is.
    """

    pixels: Pixels
    missing: Mask | None


class Plane(NamedTuple):
    """One of the pictures that the file stores: its number there, and how much coarser than level 0 it is."""

    number: int
    downsample: float


class Slide:
    """An open slide; use it as a context manager. Reads from several threads are safe, sharing by fork is not."""

    def __init__(self, path: Path, planes: Planes, size: PixelSize) -> None:
        self.path = path
        self._planes = planes
        self._size = size
        self._downsamples = tuple(_downsample(planes.sizes[0], plane) for plane in planes.sizes)

    @classmethod
    def open(cls, path: str | Path, *, mpp: float | None = None, desk: ReadingDesk | None = None) -> Slide:
        """Open a slide, checking its structure first.

        Args:
            path: of the file.
            mpp: um per level-0 pixel, in place of what the file says.
            desk: a process that reads the file, so that whatever its decoder does harms only that process.
        """
        file = Path(path)
        require_file(file)
        planes: Planes = open_planes(file) if desk is None else ElsewherePlanes(file, desk)
        try:
            width, height = planes.sizes[0]
            if width <= 0 or height <= 0 or width * height > MAX_AREA_PX:
                raise SlideError(f"claims {width:,} x {height:,} pixels", where=file)
            return cls(file, planes, pixel_size(planes.clues, mpp, file))
        except BaseException:
            planes.close()
            raise

    @property
    def name(self) -> str:
        """The slide's id, from its file's name."""
        return slide_id_of(self.path)

    @property
    def l0_size_px(self) -> tuple[int, int]:
        """(width, height)."""
        return self._planes.sizes[0]

    @property
    def mpp(self) -> float:
        """Micrometres per level-0 pixel."""
        return self._size.mpp

    @property
    def mpp_origin(self) -> str:
        """Where the pixel size comes from."""
        return self._size.origin

    @property
    def vendor(self) -> str:
        return self._planes.vendor

    @property
    def native_mpps(self) -> tuple[float, ...]:
        """The pixel sizes that are stored in the file, finest first."""
        return tuple(self.mpp * downsample for downsample in self._downsamples)

    def plane_for(self, zoom: float) -> Plane:
        """The stored plane that serves where `zoom` level-0 pixels become one: the coarsest that is fine enough."""
        enough = [d for d in self._downsamples if d <= zoom * _SAME_SCALE]
        downsample = max(enough, default=self._downsamples[0])
        return Plane(self._downsamples.index(downsample), downsample)

    def read(self, l0_box: Box, out_px: tuple[int, int], *, allow_upsample: bool = False) -> Region:
        """The pixels of `l0_box` as a picture of `out_px` (width, height)."""
        out_width, out_height = out_px
        if min(l0_box.width, l0_box.height, *out_px) <= 0 or out_width * out_height > MAX_OUT_PX:
            raise SlideError(
                f"a read of {l0_box} as {out_width:,} x {out_height:,} pixels is not possible", where=self.path
            )
        zoom = min(l0_box.width / out_width, l0_box.height / out_height)
        if zoom < 1 and not allow_upsample:
            raise SlideError(
                f"finer than the scan: {out_width} x {out_height} pixels of a box of {l0_box.width} x {l0_box.height}",
                where=self.path,
                hint="Ask for a lower magnification, or give `--allow-upsample`",
            )
        plane = self.plane_for(zoom)
        region = self._read_plane(plane.number, _scaled(l0_box, plane.downsample), out_px)
        return _resampled(region, out_px)

    def thumbnail(self, max_px: int) -> Pixels:
        """The whole slide, its longer side at most `max_px` (never larger than the scan); missing pixels are white."""
        width, height = self.l0_size_px
        scale = min(1.0, max_px / max(width, height))
        out_px = max(1, round(width * scale)), max(1, round(height * scale))
        return self.read(Box(0, 0, width, height), out_px).pixels

    def close(self) -> None:
        self._planes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        width, height = self.l0_size_px
        return f"Slide({self.path.name!r}, {width} x {height} px, {self.mpp:g} um/px, {self.vendor})"

    def _read_plane(self, plane: int, box: Box, out_px: tuple[int, int]) -> Region:
        """`box` in the plane's own pixels, shrunk by a whole factor on the way if it is too large to hold."""
        if box.width * box.height > MAX_SOURCE_PX:
            raise SlideError(
                f"{box.width * box.height / 1e9:.1f} gigapixels would have to be decoded for one overview of "
                f"{out_px[0]} x {out_px[1]}: the file has no smaller copy of itself",
                where=self.path,
                hint="Convert it to a pyramid, for example `vips tiffsave --tile --pyramid`",
            )
        if box.width * box.height <= _BLOCK_PX**2:
            return self._read_block(plane, box)
        factor = max(
            1, min(box.width // out_px[0], box.height // out_px[1], -(-max(box.width, box.height) // _BLOCK_PX))
        )
        shape = -(-box.height // factor), -(-box.width // factor)
        pixels = np.empty((*shape, 3), np.uint8)
        missing = np.zeros(shape, np.bool_)
        step = _BLOCK_PX // factor * factor
        for y in range(0, box.height, step):
            for x in range(0, box.width, step):
                width, height = min(step, box.width - x), min(step, box.height - y)
                part = self._read_block(plane, Box(box.x + x, box.y + y, width, height))
                part = _resampled(part, (-(-width // factor), -(-height // factor)))
                inside = np.s_[
                    y // factor : y // factor + part.pixels.shape[0], x // factor : x // factor + part.pixels.shape[1]
                ]
                pixels[inside] = part.pixels
                missing[inside] = False if part.missing is None else part.missing
        return Region(pixels, missing if missing.any() else None)

    def _read_block(self, plane: int, box: Box) -> Region:
        """`box` in the plane's own pixels, as it is; white outside the picture."""
        width, height = self._planes.sizes[plane]
        left, right = min(max(box.x, 0), width), min(max(box.x + box.width, 0), width)
        top, bottom = min(max(box.y, 0), height), min(max(box.y + box.height, 0), height)
        if (left, top, right - left, bottom - top) == box:
            return Region(*self._planes.read(plane, *box))
        pixels = np.full((box.height, box.width, 3), WHITE, np.uint8)
        missing: Mask | None = None
        if right > left and bottom > top:
            part = np.s_[top - box.y : bottom - box.y, left - box.x : right - box.x]
            pixels[part], hole = self._planes.read(plane, left, top, right - left, bottom - top)
            if hole is not None:
                missing = np.zeros((box.height, box.width), np.bool_)
                missing[part] = hole
        return Region(pixels, missing)


def _downsample(l0_size: tuple[int, int], size: tuple[int, int]) -> float:
    factor = round(l0_size[0] / size[0])
    if all(abs(factor * small - large) < factor for large, small in zip(l0_size, size, strict=True)):
        return float(factor)
    return (l0_size[0] / size[0] + l0_size[1] / size[1]) / 2


def _scaled(box: Box, downsample: float) -> Box:
    x, y, width, height = (round(value / downsample) for value in box)
    return Box(x, y, max(1, width), max(1, height))


def _resampled(region: Region, out_px: tuple[int, int]) -> Region:
    """The region at another size; an output pixel is missing if any pixel it is made from is."""
    height, width = region.pixels.shape[:2]
    if (width, height) == out_px:
        return region
    shrinks = width >= out_px[0] and height >= out_px[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    pixels = cv2.resize(region.pixels, out_px, interpolation=how).astype(np.uint8, copy=False)
    missing = None
    if region.missing is not None:
        missing = cv2.resize(region.missing.astype(np.float32), out_px, interpolation=how) > 0
    return Region(pixels, missing)
