"""Vendors' formats and DICOM through OpenSlide: the only file that imports it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import openslide

from marble.errors import SlideError
from marble.floors import refuse_older
from marble.slides.mpp import PixelSizeClues, tiff_resolution
from marble.slides.readers.ome import Ome
from marble.slides.readers.planes import WHITE, Mask, Pixels

MAX_UNDECODABLE_TILES = 512
_DEFAULT_TILE_PX = 256
_OPAQUE = 255
#: the vendor of tiled TIFFs that no scanner's software wrote
GENERIC = "generic-tiff"


def openslide_vendor(path: Path) -> str | None:
    """The format's name if OpenSlide knows it."""
    refuse_older("OpenSlide", library_version())
    try:
        vendor: str | None = openslide.OpenSlide.detect_format(path)
    except openslide.OpenSlideError as error:
        raise SlideError(f"OpenSlide cannot read it: {error}", where=path) from None
    return vendor


def library_version() -> str:
    """The version of the OpenSlide library in use."""
    return str(openslide.__library_version__)


class OpenSlidePlanes:
    """A file opened by OpenSlide.

    One tile that cannot be decoded puts the whole handle into an error state. A failed read is therefore repeated tile
    by tile with handles of its own, so that exactly the bad tiles come back as missing, and the shared handle is
    replaced. Safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = self._open()
        self._lock = threading.Lock()
        self._bad: set[tuple[int, int, int]] = set()  # (plane, tile column, tile row)
        properties = self._handle.properties
        self.vendor: str = properties.get("openslide.vendor", "unknown")
        self.sizes: tuple[tuple[int, int], ...] = self._handle.level_dimensions
        self.clues = _clues(properties)
        self._tile_px = [
            tuple(
                int(properties.get(f"openslide.level[{i}].tile-{side}", _DEFAULT_TILE_PX))
                for side in ("width", "height")
            )
            for i in range(len(self.sizes))
        ]

    def read(self, plane: int, x: int, y: int, width: int, height: int) -> tuple[Pixels, Mask | None]:
        known_bad = self._bad and any(tile in self._bad for tile in self._tiles(plane, x, y, width, height))
        if not known_bad:
            handle = self._handle
            try:
                return _split(_region(handle, plane, x, y, width, height))
            except openslide.OpenSlideError:
                self._replace(handle)
        return self._salvage(plane, x, y, width, height)

    def close(self) -> None:
        self._handle.close()

    def _open(self) -> Any:
        try:
            return openslide.OpenSlide(self._path)
        except (openslide.OpenSlideError, OSError) as error:
            raise SlideError(f"OpenSlide cannot read it: {error}", where=self._path) from None

    def _replace(self, dead: Any) -> None:
        with self._lock:
            if self._handle is dead:  # not closed: another thread may still be inside it
                self._handle = self._open()

    def _tiles(self, plane: int, x: int, y: int, width: int, height: int) -> Iterator[tuple[int, int, int]]:
        across, down = self._tile_px[plane]
        for row in range(y // down, (y + height - 1) // down + 1):
            for column in range(x // across, (x + width - 1) // across + 1):
                yield plane, column, row

    def _salvage(self, plane: int, x: int, y: int, width: int, height: int) -> tuple[Pixels, Mask | None]:
        """The same region, one of the file's own tiles at a time; those that fail stay white and are marked."""
        pixels = np.full((height, width, 3), WHITE, np.uint8)
        missing = np.zeros((height, width), np.bool_)
        across, down = self._tile_px[plane]
        with self._lock, _Private(self._open) as handle:
            for tile in self._tiles(plane, x, y, width, height):
                _, column, row = tile
                left, right = max(x, column * across), min(x + width, (column + 1) * across)
                top, bottom = max(y, row * down), min(y + height, (row + 1) * down)
                part = np.s_[top - y : bottom - y, left - x : right - x]
                if tile not in self._bad:
                    try:
                        pixels[part], hole = _split(_region(handle(), plane, left, top, right - left, bottom - top))
                    except openslide.OpenSlideError:
                        self._remember(tile)
                        handle.reopen()
                    else:
                        missing[part] = False if hole is None else hole
                if tile in self._bad:
                    missing[part] = True
        return pixels, missing if missing.any() else None

    def _remember(self, tile: tuple[int, int, int]) -> None:
        self._bad.add(tile)
        if len(self._bad) > MAX_UNDECODABLE_TILES:
            raise SlideError(
                f"more than {MAX_UNDECODABLE_TILES} tiles cannot be decoded",
                where=self._path,
                hint="Copy or export the file again",
            )


class _Private:
    """A handle no other thread uses, opened when first needed."""

    def __init__(self, opener: Any) -> None:
        self._opener, self._handle = opener, None

    def __call__(self) -> Any:
        if self._handle is None:
            self._handle = self._opener()
        return self._handle

    def reopen(self) -> None:
        if self._handle is not None:
            self._handle.close()
        self._handle = None

    def __enter__(self) -> _Private:
        return self

    def __exit__(self, *_: object) -> None:
        self.reopen()


def _region(handle: Any, plane: int, x: int, y: int, width: int, height: int) -> Pixels:
    """(h, w, 4) RGBA. OpenSlide takes level-0 places, so a plane's pixel is asked for at the nearest level-0 one."""
    downsample = handle.level_downsamples[plane]
    place = (round(x * downsample), round(y * downsample))
    return np.asarray(handle.read_region(place, plane, (width, height)))


def _split(rgba: Pixels) -> tuple[Pixels, Mask | None]:
    """Transparent is missing. Half-transparent seams between tiles are laid on white."""
    alpha = rgba[..., 3]
    if int(alpha.min()) == _OPAQUE:
        return np.asarray(cv2.cvtColor(rgba, cv2.COLOR_RGBA2RGB), np.uint8), None  # far faster than slicing
    weight = alpha[..., None].astype(np.float32) / _OPAQUE  # (h, w, 1)
    pixels = np.rint(rgba[..., :3] * weight + WHITE * (1 - weight)).astype(np.uint8)
    missing = alpha < (_OPAQUE + 1) // 2
    return pixels, missing if missing.any() else None


def _clues(properties: Any) -> PixelSizeClues:
    x, y = properties.get("openslide.mpp-x"), properties.get("openslide.mpp-y")
    power = properties.get("openslide.objective-power")
    if x is not None and y is not None and properties.get("openslide.vendor") != GENERIC:
        return PixelSizeClues((("openslide.mpp-x", x, y),), power)
    if (aperio := properties.get("aperio.MPP")) is not None:
        return PixelSizeClues((("aperio.MPP", aperio, aperio),), power)
    ome = Ome.of(properties.get("tiff.ImageDescription", ""))
    fields = () if ome is None else ome.pixel_size()
    tags = tiff_resolution(
        properties.get("tiff.XResolution"), properties.get("tiff.YResolution"), properties.get("tiff.ResolutionUnit")
    )
    fields += () if tags is None else (tags,)
    return PixelSizeClues(fields, power if ome is None else ome.objective())
