"""What a compressed tile claims to be, read from its first bytes.

Codecs for whole pictures allocate what the stream claims, not what the tile should be: a JPEG of a few bytes can ask
for 65,535 x 65,535 pixels.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

_STARTS_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE, _SCAN, _RESTART_INTERVAL = 0xC0, 0xDA, 0xDD
_SEQUENTIAL, _HUFFMAN = (0xC0, 0xC1), 0xC4
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_SEARCHED_BYTES = 4096


class PlainJpeg(NamedTuple):
    """A baseline JPEG stream of interleaved components, without restart markers."""

    width: int
    height: int
    height_at: int  # where the height is written: two bytes, high byte first
    mcu_width: int  # columns and
    mcu_height: int  # rows of pixels that are coded together


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a JPEG stream; None if it holds no frame header."""
    for marker, at in _headers(data):
        if marker in _STARTS_OF_FRAME and at + 9 <= len(data):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
    return None


def plain_jpeg(data: bytes, components: tuple[int, ...] = (3,)) -> PlainJpeg | None:
    """What a JPEG stream claims to be; None if it is of any other kind, or its header is damaged."""
    frame: PlainJpeg | None = None
    count = 0
    for marker, at in _headers(data):
        if marker == _SCAN:
            return frame if data[at + 4 : at + 5] == bytes((count,)) else None
        if marker == _RESTART_INTERVAL or (marker in _STARTS_OF_FRAME and (marker != _BASELINE or frame)):
            return None
        if marker == _BASELINE:
            header = data[at + 2 : at + 10]  # length, bits, height, width, components
            if len(header) < 8 or header[2] != 8 or header[7] not in components:
                return None
            count = header[7]
            factors = data[at + 11 : at + 10 + 3 * count : 3]
            if len(factors) < count or header[:2] != (8 + 3 * count).to_bytes(2, "big"):
                return None
            height, width = struct.unpack(">HH", header[3:7])
            across, down = (1, 1) if count == 1 else (max(f >> 4 for f in factors), max(f & 15 for f in factors))
            frame = PlainJpeg(width, height, at + 5, 8 * across, 8 * down)
    return None


def jpeg_scan(data: bytes) -> int | None:
    """Where the picture data of a sequential JPEG stream starts; None for any other stream."""
    sequential = False
    for marker, at in _headers(data):
        if marker in _STARTS_OF_FRAME:
            sequential = marker in _SEQUENTIAL
        if marker == _SCAN and sequential and at + 4 <= len(data):
            return at + 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    return None


def huffman_symbols(data: bytes) -> list[bytes]:
    """What each Huffman table of a stream, or of tables with a stream behind them, can say; zero bits say the first."""
    found: dict[int, bytes] = {}
    for start in _starts(data):
        for marker, at in _headers(data[start:]):
            if marker == _HUFFMAN:
                at += start
                end = min(at + 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0]), len(data))  # as it claims
                at += 4
                while at + 17 < end:
                    count = sum(data[at + 1 : at + 17])
                    found[data[at]] = data[at + 17 : at + 17 + count]
                    at += 17 + count
    return list(found.values())


def restart_gaps(data: bytes) -> int:
    """How many restart markers of a sequential stream are not where the one before them says."""
    scan = jpeg_scan(data)
    marks = [] if scan is None else [data[at.start() + 1] & 7 for at in _RESTART.finditer(data, scan)]
    return sum(mark != number % 8 for number, mark in enumerate(marks))


def has_restarts(data: bytes) -> bool:
    """Whether a JPEG header, or JPEG tables, ask for restart markers."""
    return any(marker == _RESTART_INTERVAL for marker, _ in _headers(data))


def _starts(data: bytes) -> list[int]:
    """Where streams begin: tables and a stream may follow each other."""
    second = data.find(b"\xff\xd8", 2)
    return [0] if second < 0 else [0, second]


def _headers(data: bytes) -> Iterator[tuple[int, int]]:
    """(marker, place) of the segments in front of the picture data."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        yield marker, at
        if marker == _SCAN:
            return
        at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])


def jpeg2000_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a JPEG 2000 stream, bare or in its box; None if no header is found near the start."""
    at = data[:_SEARCHED_BYTES].find(b"\xff\x4f\xff\x51")
    if at < 0 or len(data) < at + 24:
        return None
    right, bottom, left, top = struct.unpack(">IIII", data[at + 8 : at + 24])
    return right - left, bottom - top


def jpeg2000_is_whole(data: bytes) -> bool:
    """Whether a JPEG 2000 stream ends with its end marker, and no zeros lie where picture data belongs."""
    bare = data.rstrip(b"\0") if not data.endswith(b"\xff\xd9") else data
    return bare.endswith(b"\xff\xd9") and bytes(64) not in bare[data.find(b"\xff\x93") :]
