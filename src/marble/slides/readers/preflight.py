"""What a TIFF claims about itself, compared with the file, before any decoder sees it.

Decoders answer damage with "unsupported or missing image file", with black pixels or with a crash. This walk over the
directories costs milliseconds, allocates what the file really holds, and gives the reason in words. It never decodes
pixels and never parses XML.

Decisions: a file that is no TIFF passes (its own decoder judges it). NDPI is known by its own tag, never by the file's
name, and is held to its sizes, and below 4 GB to its places; beyond, its offsets are 64-bit numbers in 32-bit fields,
which only its own reader understands. Tiles without bytes are legal
and counted, but a plane that consists of nothing else is refused. Planes whose tiles share bytes are refused: no
scanner writes them, and a small file could otherwise demand unbounded work.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from marble.errors import SlideError

MAX_IFDS = 1024
MAX_TAGS = 4096
MAX_SIDE_PX = 2**31 - 1
MAX_AREA_PX = 2**37  # 370,000 x 370,000; the largest scanners stay below 2**35
MAX_SEGMENT_PX = 2**26
MAX_SEGMENTS = 2**22
MAX_DESCRIPTION_BYTES = 2**24

_WIDTH, _HEIGHT, _DESCRIPTION, _SAMPLES, _PLANAR = 256, 257, 270, 277, 284
_STRIP_OFFSETS, _ROWS_PER_STRIP, _STRIP_COUNTS = 273, 278, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_COUNTS = 322, 323, 324, 325
_SUB_IFDS, _NDPI_FORMAT = 330, 65420
_NDPI_WRAPS = 2**32
_INTEGERS = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_COPY_AGAIN = "Copy or export the file again"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Directory:
    """One image of a TIFF: its size, how it is cut into tiles or strips, and how many of those hold no bytes."""

    width: int
    height: int
    segments: int
    missing: int
    is_sub: bool


@dataclass(frozen=True)
class TiffClaims:
    """All directories in file order; sub-directories follow their owner. An NDPI file has none here.

    `description` is that of the first one.
    """

    directories: tuple[Directory, ...]
    description: str = ""

    @property
    def has_sub_directories(self) -> bool:
        return any(directory.is_sub for directory in self.directories)

    def require_no_stack(self, path: str | Path) -> None:
        """Refuse further pictures of the first one's size: of a stack all but one would be passed over."""
        whole = [(one.width, one.height) for one in self.directories if not one.is_sub]
        if whole and (count := whole.count(whole[0])) > 1:  # an NDPI file has none here
            what = f"holds {count} pictures of {whole[0][0]:,} x {whole[0][1]:,} pixels, not one"
            hint = "Save the one you want as a file of its own, for example `tiffcp IN,0 OUT.tiff`"
            raise SlideError(what, where=path, hint=hint)


def preflight(path: str | Path) -> TiffClaims | None:
    """Check a TIFF's structure; None if the file is not a TIFF. Raises :class:`SlideError` with the reason."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            layout = _Layout.of(file.read(16), path)
            if layout is None:
                return None
            return _Walk(file, size, layout, path).claims()
    except OSError as error:
        raise SlideError(f"cannot be read: {error.strerror or error}", where=path) from None


@dataclass(frozen=True)
class _Layout:
    """How numbers are stored: byte order, and classic (32-bit) or big (64-bit) offsets."""

    order: str
    big: bool
    first: int

    @classmethod
    def of(cls, head: bytes, path: str | Path) -> _Layout | None:
        if not head:
            raise SlideError("the file is empty", where=path, hint=_COPY_AGAIN)
        order = {b"II": "<", b"MM": ">"}.get(head[:2])
        if order is None or len(head) < 4:
            return None
        version = struct.unpack(order + "H", head[2:4])[0]
        if version == 42 and len(head) >= 8:
            return cls(order, False, struct.unpack(order + "I", head[4:8])[0])
        if version == 43 and len(head) == 16 and struct.unpack(order + "HH", head[4:8]) == (8, 0):
            return cls(order, True, struct.unpack(order + "Q", head[8:16])[0])
        return None

    @property
    def count_format(self) -> str:
        return self.order + ("Q" if self.big else "H")

    @property
    def offset_format(self) -> str:
        return self.order + ("Q" if self.big else "I")

    @property
    def entry_bytes(self) -> int:
        return 20 if self.big else 12


@dataclass(frozen=True)
class _Tag:
    kind: int
    count: int
    inline: bytes  # the value itself if it fits, else its offset


class _Walk:
    """One pass over all directories of one open file."""

    def __init__(self, file: BinaryIO, size: int, layout: _Layout, path: str | Path) -> None:
        self.file, self.size, self.layout, self.path = file, size, layout, path
        self.seen: set[int] = set()
        self.description = ""  # of the first directory

    def claims(self) -> TiffClaims:
        found: list[Directory] = []
        offset = self.layout.first
        while offset:
            tags, following = self._tags(offset)
            if not found and _NDPI_FORMAT in tags:
                self._check_ndpi(tags, following)
                return TiffClaims(())
            found.append(self._directory(tags, len(found), is_sub=False))
            for sub in self._integers(tags, _SUB_IFDS, limit=MAX_IFDS):
                found.append(self._directory(self._tags(int(sub))[0], len(found), is_sub=True))
            offset = following
        if not found:
            raise self._bad("a TIFF without any image", hint=_COPY_AGAIN)
        return TiffClaims(tuple(found), self.description)

    def _check_ndpi(self, tags: dict[int, _Tag], following: int) -> None:
        """Sizes of all images that can be found: one strip each, of any height, with restart markers inside."""
        number = 0
        while True:
            self._check_size(tags, number)
            if self.size >= _NDPI_WRAPS:
                return
            for start, length in zip(
                self._integers(tags, _STRIP_OFFSETS, MAX_SEGMENTS),
                self._integers(tags, _STRIP_COUNTS, MAX_SEGMENTS),
                strict=False,
            ):
                if (excess := int(start) + int(length) - self.size) > 0:
                    what = f"truncated: image {number} ends {_readable(excess)} past end of file"
                    raise self._bad(what, hint=_COPY_AGAIN)
            if not following:
                return
            tags, following = self._tags(following)
            number += 1

    def _check_size(self, tags: dict[int, _Tag], number: int) -> tuple[int, int]:
        width, height = self._one(tags, _WIDTH), self._one(tags, _HEIGHT)
        if not (0 < width <= MAX_SIDE_PX and 0 < height <= MAX_SIDE_PX) or width * height > MAX_AREA_PX:
            raise self._bad(f"image {number} claims {width:,} x {height:,} pixels, beyond any scanner")
        self._check_description(tags, number)
        return width, height

    def _tags(self, offset: int) -> tuple[dict[int, _Tag], int]:
        """The tags of the directory at `offset`, and where the next directory starts (0: none)."""
        if offset in self.seen:
            raise self._bad(f"image directories form a loop (the one at byte {offset:,} comes twice)")
        if len(self.seen) >= MAX_IFDS:
            raise self._bad(f"more than {MAX_IFDS} image directories")
        self.seen.add(offset)
        layout = self.layout
        (entries,) = struct.unpack(layout.count_format, self._bytes(offset, struct.calcsize(layout.count_format)))
        if entries > MAX_TAGS:
            raise self._bad(f"the image directory at byte {offset:,} claims {entries:,} tags")
        start = offset + struct.calcsize(layout.count_format)
        tail = struct.calcsize(layout.offset_format)
        body = self._bytes(start, entries * layout.entry_bytes + tail)
        tags = {}
        for at in range(0, entries * layout.entry_bytes, layout.entry_bytes):
            entry = body[at : at + layout.entry_bytes]
            code, kind, count = struct.unpack(layout.order + ("HHQ" if layout.big else "HHI"), entry[:-tail])
            tags[code] = _Tag(kind, count, entry[-tail:])
        (following,) = struct.unpack(layout.offset_format, body[-tail:])
        return tags, following

    def _directory(self, tags: dict[int, _Tag], number: int, *, is_sub: bool) -> Directory:
        width, height = self._check_size(tags, number)
        tiled = _TILE_OFFSETS in tags or _TILE_WIDTH in tags
        if tiled:
            across, down = self._one(tags, _TILE_WIDTH), self._one(tags, _TILE_HEIGHT)
        else:
            across, down = width, min(self._one(tags, _ROWS_PER_STRIP, default=height), height)
        if across <= 0 or down <= 0 or across * down > MAX_SEGMENT_PX:
            raise self._bad(f"image {number} has {'tiles' if tiled else 'strips'} of {across:,} x {down:,} pixels")
        expected = -(-width // across) * -(-height // down)
        if self._one(tags, _PLANAR, default=1) == 2:
            expected *= self._one(tags, _SAMPLES, default=1)
        if expected > MAX_SEGMENTS:
            raise self._bad(f"image {number} claims {expected:,} tiles")
        missing = self._check_segments(tags, number, expected, tiled=tiled)
        return Directory(width, height, expected, missing, is_sub)

    def _check_segments(self, tags: dict[int, _Tag], number: int, expected: int, *, tiled: bool) -> int:
        """Compare where tiles (or strips) are said to lie with the file; return how many hold no bytes."""
        word = "tile" if tiled else "strip"
        offsets = self._integers(tags, _TILE_OFFSETS if tiled else _STRIP_OFFSETS, limit=expected)
        counts = self._integers(tags, _TILE_COUNTS if tiled else _STRIP_COUNTS, limit=expected)
        if len(offsets) != expected or len(counts) != expected:
            raise self._bad(
                f"image {number} needs {expected:,} {word}s but lists {len(offsets):,} places and "
                f"{len(counts):,} lengths",
                hint=_COPY_AGAIN,
            )
        held = (offsets > 0) & (counts > 0)
        if not held.any():
            raise self._bad(f"every one of the {expected:,} {word}s of image {number} is missing", hint=_COPY_AGAIN)
        size = np.uint64(self.size)
        # Compared without a sum: a hostile file may claim 2**64 - 1 for both.
        past_end = held & ((counts > size) | (offsets > size - np.minimum(counts, size)))
        if past_end.any():
            first = int(np.argmax(past_end))
            excess = int(offsets[first]) + int(counts[first]) - self.size
            raise self._bad(
                f"truncated: {word} {first} ends {_readable(excess)} past end of file "
                f"({int(past_end.sum()):,} of {expected:,} {word}s of image {number} do)",
                hint=_COPY_AGAIN,
            )
        total = int(counts[held].sum(dtype=np.uint64))
        if total > self.size:
            raise self._bad(
                f"the {word}s of image {number} share bytes ({_readable(total)} of them in a file of "
                f"{_readable(self.size)})",
                hint="Rewrite the file, for example with `vips tiffsave`",
            )
        return int(expected - held.sum())

    def _check_description(self, tags: dict[int, _Tag], number: int) -> None:
        tag = tags.get(_DESCRIPTION)
        if tag is None:
            return
        if tag.count > MAX_DESCRIPTION_BYTES:
            raise self._bad(f"image {number} has a description of {_readable(tag.count)}")
        text = self._value(tag)
        if b"<!ENTITY" in text or b"<!DOCTYPE" in text:
            raise self._bad(f"the description of image {number} defines XML entities, which no scanner writes")
        if number == 0:
            self.description = text.rstrip(b"\0").decode("utf-8", "replace")

    def _one(self, tags: dict[int, _Tag], code: int, default: int | None = None) -> int:
        if code not in tags:
            if default is None:
                raise self._bad(f"an image without its tag {code}", hint=_COPY_AGAIN)
            return default
        values = self._integers(tags, code, limit=MAX_TAGS)
        if len(values) == 0:
            raise self._bad(f"tag {code} holds no whole number", hint=_COPY_AGAIN)
        return int(values[0])

    def _integers(self, tags: dict[int, _Tag], code: int, limit: int) -> Array:
        """A tag's whole numbers, (n,) uint64; empty if absent. More than `limit` are not read."""
        tag = tags.get(code)
        if tag is None or tag.kind not in _INTEGERS:
            return np.empty(0, np.uint64)
        if tag.count > limit:
            raise self._bad(f"tag {code} lists {tag.count:,} numbers where {limit:,} belong", hint=_COPY_AGAIN)
        return np.frombuffer(self._value(tag), self.layout.order + _INTEGERS[tag.kind]).astype(np.uint64)

    def _value(self, tag: _Tag) -> bytes:
        length = tag.count * _SIZES.get(tag.kind, 1)
        if length <= len(tag.inline):
            return tag.inline[:length]
        return self._bytes(struct.unpack(self.layout.offset_format, tag.inline)[0], length)

    def _bytes(self, offset: int, length: int) -> bytes:
        if offset + length > self.size:
            raise self._bad(
                f"truncated: its directory needs bytes up to {offset + length:,}, the file ends at {self.size:,}",
                hint=_COPY_AGAIN,
            )
        self.file.seek(offset)
        return self.file.read(length)

    def _bad(self, what: str, hint: str | None = None) -> SlideError:
        return SlideError(what, where=self.path, hint=hint)


def _readable(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count:,} bytes"
