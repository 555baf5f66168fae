"""Planes stored as a grid of tiles or strips: a region is put together from those it touches.

Segments are fetched and decoded one by one, so memory stays bounded by the region asked for and a small cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cachetools import LRUCache

from marble.slides.readers.planes import WHITE, Mask, Pixels

CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class SegmentGrid:
    """Where the segments of one plane lie, and how one is decoded.

    Args:
        size: (width, height) of the plane.
        segment: (width, height) of a segment; those at the right and lower edge may be cut off there.
        offsets: place of each segment in the file, row-major; 0 if the file does not hold it.
        counts: its length in bytes; 0 if the file does not hold it.
        decode: stored bytes and index to pixels (h, w, 3); None if they cannot be decoded.
    """

    size: tuple[int, int]
    segment: tuple[int, int]
    offsets: Sequence[int]
    counts: Sequence[int]
    decode: Callable[[bytes, int], Pixels | None]


class Segments:
    """The planes of an open file. Safe to use from several threads."""

    def __init__(self, path: Path, grids: Sequence[SegmentGrid]) -> None:
        self._grids = tuple(grids)
        self._descriptor = os.open(path, os.O_RDONLY)
        self._cache: LRUCache[tuple[int, int], Pixels] = LRUCache(CACHE_BYTES, getsizeof=lambda held: held.nbytes)
        self._lock = threading.Lock()

    def read(self, plane: int, x: int, y: int, width: int, height: int) -> tuple[Pixels, Mask | None]:
        """As `Planes.read`."""
        grid = self._grids[plane]
        across, down = grid.segment
        columns = -(-grid.size[0] // across)
        pixels = np.empty((height, width, 3), np.uint8)
        missing: Mask | None = None
        for row in range(y // down, (y + height - 1) // down + 1):
            for column in range(x // across, (x + width - 1) // across + 1):
                left, right = max(x, column * across), min(x + width, (column + 1) * across)
                top, bottom = max(y, row * down), min(y + height, (row + 1) * down)
                part = np.s_[top - y : bottom - y, left - x : right - x]
                segment = self._segment(plane, row * columns + column)
                if segment is None:
                    pixels[part] = WHITE
                    missing = np.zeros((height, width), np.bool_) if missing is None else missing
                    missing[part] = True
                else:
                    inside = np.s_[
                        top - row * down : bottom - row * down, left - column * across : right - column * across
                    ]
                    pixels[part] = segment[inside]
        return pixels, missing

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _segment(self, plane: int, index: int) -> Pixels | None:
        """One decoded segment (h, w, 3); None if the file does not hold it or it cannot be decoded."""
        with self._lock:
            if (known := self._cache.get((plane, index))) is not None:
                return known
        grid = self._grids[plane]
        offset, count = grid.offsets[index], grid.counts[index]
        if offset == 0 or count == 0:
            return None
        stored = os.pread(self._descriptor, count, offset)
        segment = grid.decode(stored, index) if len(stored) == count else None
        if segment is not None:
            self._keep((plane, index), segment)
        return segment

    def _keep(self, key: tuple[int, int], segment: Pixels) -> None:
        with self._lock:
            if segment.nbytes <= CACHE_BYTES:
                self._cache[key] = segment
