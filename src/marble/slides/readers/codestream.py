"""What a compressed tile claims to be, read from its first bytes.

Codecs for whole pictures allocate what the stream claims, not what the tile should be: a JPEG of a few bytes can ask
for 65,535 x 65,535 pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_STARTS_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE, _SCAN, _RESTART_INTERVAL = 0xC0, 0xDA, 0xDD
_SEARCHED_BYTES = 4096


class PlainJpeg(NamedTuple):
    """A baseline JPEG stream of three interleaved components, without restart markers."""

    width: int
    height: int
    height_at: int  # where the height is written: two bytes, high byte first
    mcu_height: int  # rows of pixels that are coded together


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a JPEG stream; None if it holds no frame header."""
    for marker, at in _headers(data):
        if marker in _STARTS_OF_FRAME and at + 9 <= len(data):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
    return None


def plain_jpeg(data: bytes) -> PlainJpeg | None:
    """What a JPEG stream claims to be; None if it is of any other kind, or its header is damaged."""
    frame: PlainJpeg | None = None
    for marker, at in _headers(data):
        if marker == _SCAN:
            return frame if data[at + 4 : at + 5] == b"\x03" else None
        if marker == _RESTART_INTERVAL or (marker in _STARTS_OF_FRAME and (marker != _BASELINE or frame)):
            return None
        if marker == _BASELINE:
            frame_header = data[at + 2 : at + 19]
            if (
                len(frame_header) < 17 or frame_header[:3] != b"\x00\x11\x08" or frame_header[7] != 3
            ):  # 8 bits, 3 colours
                return None
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            frame = PlainJpeg(width, height, at + 5, 8 * max(factors & 15 for factors in data[at + 11 : at + 19 : 3]))
    return None


def has_restarts(data: bytes) -> bool:
    """Whether a JPEG header, or JPEG tables, ask for restart markers."""
    return any(marker == _RESTART_INTERVAL for marker, _ in _headers(data))


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
