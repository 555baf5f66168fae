"""The picture size a compressed tile claims, read from its first bytes.

Codecs for whole pictures allocate what the stream claims, not what the tile should be: a JPEG of a few bytes can ask
for 65,535 x 65,535 pixels.
"""

from __future__ import annotations

import struct

_STARTS_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEARCHED_BYTES = 4096


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a JPEG stream; None if it holds no frame header."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _STARTS_OF_FRAME:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        if marker == 0xFF:
            at += 1
        else:
            at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    return None


def jpeg2000_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a JPEG 2000 stream, bare or in its box; None if no header is found near the start."""
    at = data[:_SEARCHED_BYTES].find(b"\xff\x4f\xff\x51")
    if at < 0 or len(data) < at + 24:
        return None
    right, bottom, left, top = struct.unpack(">IIII", data[at + 8 : at + 24])
    return right - left, bottom - top
