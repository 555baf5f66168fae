"""Pixels for the browser: slides opened lazily, deep-zoom tiles cut on demand, encoded once, never upscaled."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock

import cv2
import numpy as np
from numpy.typing import NDArray

from marble.attribution.tile_map import Boxes
from marble.errors import MarbleError, SlideError
from marble.slide_files import files_of
from marble.slides.readers.elsewhere import LIMITS, ReadingDesk, UndecodableError, reading_elsewhere
from marble.slides.slide import Box, Slide
from marble.viewer.cache import ByteCache
from marble.viewer.registry import StoredBag

TILE_PX = 256
OPEN_SLIDES = 16
CACHE_BYTES = 256 << 20
READING = replace(LIMITS, timeout_s=60)  # of one read: somebody waits for it
_JPEG_QUALITY = 85
_SAMPLE_BYTES = 1 << 16
Stamp = tuple[int, int, int, int]


class ChangedError(MarbleError):
    """The slide's file is not the one that was opened."""


class GoneError(MarbleError):
    """The slide's file is not there any more."""


def top_zoom(l0_size_px: tuple[int, int]) -> int:
    """The zoom at which one picture pixel is one level-0 pixel; every zoom below halves it, 0 is a single pixel."""
    return (max(l0_size_px) - 1).bit_length()


def tile_box(l0_size_px: tuple[int, int], zoom: int, column: int, row: int) -> tuple[Box, tuple[int, int]] | None:
    """A deep-zoom tile's box in level-0 pixels and its size; None if there is no such tile."""
    top = top_zoom(l0_size_px)
    if not 0 <= zoom <= top or column < 0 or row < 0:
        return None
    scale = 1 << (top - zoom)
    side = TILE_PX * scale
    x, y = column * side, row * side
    width, height = min(side, l0_size_px[0] - x), min(side, l0_size_px[1] - y)
    if width <= 0 or height <= 0:
        return None
    return Box(x, y, width, height), (-(-width // scale), -(-height // scale))


class Pictures:
    """Every picture the viewer serves, as JPEG bytes. `readers` is how many processes read slides; 0: this one."""

    def __init__(self, cache_bytes: int = CACHE_BYTES, open_slides: int = OPEN_SLIDES, readers: int = 0) -> None:
        self.cache = ByteCache(cache_bytes)
        self._pool = SlidePool(open_slides, readers)
        self._blank: dict[tuple[int, int], bytes] = {}

    def check(self, file: Path | None) -> None:
        """Refuse to go on with a file that changed or went since it was first looked at."""
        if file is not None:
            self._pool.fingerprint(file)

    def tile(
        self, file: Path | None, bag: StoredBag, l0_size_px: tuple[int, int], zoom: int, column: int, row: int
    ) -> bytes | None:
        """A deep-zoom tile of the slide a bag was made from; None if there is none at this place."""
        found = tile_box(l0_size_px, zoom, column, row)
        return None if found is None else self._picture(file, bag, *found)

    def crop(self, file: Path | None, bag: StoredBag, l0_boxes: Boxes, index: int, max_px: int) -> bytes | None:
        """One lattice tile as a small square picture; None if there is no such tile."""
        if not 0 <= index < len(l0_boxes):
            return None
        box = Box(*l0_boxes[index].tolist())
        px = min(max_px, box.width)
        return self._picture(file, bag, box, (px, px))

    @contextmanager
    def slide(self, file: Path | None, bag: StoredBag) -> Iterator[Slide]:
        """The open slide, once it is known to be the one the bag was made from."""
        if file is None:
            raise GoneError("no file of this slide here")
        identity = bag.identity
        with self._pool.lease(file, None if identity is None else identity.mpp) as slide:
            if identity is not None and slide.l0_size_px != (identity.l0_width_px, identity.l0_height_px):
                raise ChangedError("the slide's file is not the one its bag was made from")
            yield slide

    def close(self) -> None:
        self._pool.close()

    def _picture(self, file: Path | None, bag: StoredBag, box: Box, out_px: tuple[int, int]) -> bytes:
        if file is None:
            if out_px not in self._blank:
                self._blank[out_px] = _jpeg(np.full((out_px[1], out_px[0], 3), 246, np.uint8))
            return self._blank[out_px]
        key = (self._pool.fingerprint(file), bag.identity, box, out_px)
        known = self.cache.get(key)
        if known is None:
            with self.slide(file, bag) as slide:
                known = _jpeg(slide.read(box, out_px).pixels)
            self.cache.put(key, known)
        return known


class SlidePool:
    """Open slides, at most `limit` plus those in use; one that is being read is never closed.

    With `readers`, that many other processes read them, each slide always the same one. A slide that kills or halts its
    reader once is not tried again: the others are read on.
    """

    def __init__(self, limit: int, readers: int = 0) -> None:
        self.limit = limit
        self._desks = [reading_elsewhere(READING) for _ in range(readers)]
        self._undecodable: dict[Path, str] = {}
        self._lock = Lock()
        self._open: OrderedDict[Path, Slide] = OrderedDict()
        self._readers: dict[Path, int] = {}
        self._prints: dict[Path, tuple[Stamp, str]] = {}

    def fingerprint(self, path: Path) -> str:
        """Changes whenever the file does; refuses a file that changed since it was first looked at."""
        stamp = _stamp(path)
        with self._lock:
            known = self._prints.get(path)
        if known is None:
            known = stamp, _sampled_hash(path, stamp)
            with self._lock:
                known = self._prints.setdefault(path, known)
        if known[0] != stamp:
            raise ChangedError("the slide's file changed while the viewer is running", hint="Restart the viewer")
        return known[1]

    @contextmanager
    def lease(self, path: Path, mpp: float | None) -> Iterator[Slide]:
        """The open slide, kept open as long as it is used; `mpp` is what its bag was made with."""
        self.fingerprint(path)
        if path in self._undecodable:
            raise SlideError(self._undecodable[path])
        try:
            slide = self._taken(path, mpp)
            try:
                yield slide
            finally:
                self._give_back(path)
        except UndecodableError as error:
            self._undecodable[path] = error.what
            raise

    def _taken(self, path: Path, mpp: float | None) -> Slide:
        """The open slide, counted as in use. Opened outside the lock, so that no file keeps the others waiting."""
        with self._lock:
            known = path in self._open
        made = None if known else Slide.open(path, mpp=mpp, desk=self._desk(path))
        with self._lock:
            if path not in self._open:
                self._open[path] = made or Slide.open(path, mpp=mpp, desk=self._desk(path))
            elif made is not None:
                made.close()
            self._open.move_to_end(path)
            self._readers[path] = self._readers.get(path, 0) + 1
            return self._open[path]

    def _give_back(self, path: Path) -> None:
        with self._lock:
            self._readers[path] -= 1
            self._shrink()

    def close(self) -> None:
        with self._lock:
            for slide in self._open.values():
                slide.close()
            self._open.clear()
            for desk in self._desks:
                desk.close()

    def _desk(self, path: Path) -> ReadingDesk | None:
        return self._desks[zlib.crc32(os.fsencode(path)) % len(self._desks)] if self._desks else None

    def _shrink(self) -> None:
        idle = [path for path in self._open if not self._readers.get(path)]
        for path in idle[: max(0, len(self._open) - self.limit)]:
            self._open.pop(path).close()


def _stamp(path: Path) -> Stamp:
    """Size, times and inode: the time of the last change of the inode cannot be set back, so a write in place shows.

    Of a slide of several files the size of all and the latest times.
    """
    try:
        stats = [one.stat() for one in files_of(path)]
    except OSError:
        raise GoneError("the slide's file is not there any more") from None
    return (
        sum(stat.st_size for stat in stats),
        max(stat.st_mtime_ns for stat in stats),
        max(stat.st_ctime_ns for stat in stats),
        stats[0].st_ino,
    )


def _sampled_hash(path: Path, stamp: Stamp) -> str:
    """Hashing a whole slide takes minutes; its size, time and both ends tell two files apart."""
    digest = hashlib.sha256(repr(stamp).encode())
    with open(path, "rb") as file:
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, os.fstat(file.fileno()).st_size - _SAMPLE_BYTES), os.SEEK_SET)
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    good, data = cv2.imencode(
        ".jpg", np.ascontiguousarray(pixels[:, :, ::-1]), [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    )
    if not good:
        raise SlideError("a tile could not be encoded")
    return data.tobytes()
