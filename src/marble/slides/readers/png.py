"""Whether a PNG file holds all of its picture: every part's checksum, its end, and enough data for its claims.

Deflate makes at most 1,032 bytes of one: a file of a few hundred bytes that claims gigapixels lacks them.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the file's kind of colour
_MOST_OF_ONE = 1032
_MAGIC = b"\x89PNG\r\n\x1a\n"


def png_is_whole(path: Path) -> bool:
    """Walk over the parts; each is a length, a name, its bytes and their checksum."""
    data = memoryview(path.read_bytes())
    if bytes(data[:8]) != _MAGIC:
        return False
    at = 8
    claimed = held = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if at + 12 + length > len(data):
            return False
        (checksum,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        if zlib.crc32(data[at + 4 : at + 8 + length]) != checksum:
            return False
        name, body = bytes(data[at + 4 : at + 8]), data[at + 8 : at + 8 + length]
        if name == b"IHDR" and length >= 10:
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            claimed = height * (1 + width * depth * _CHANNELS.get(colour, 1) // 8)
        elif name == b"IDAT":
            held += length
        elif name == b"IEND":
            return claimed <= held * _MOST_OF_ONE
        at += 12 + length
    return False
