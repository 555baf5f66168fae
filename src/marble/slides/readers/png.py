"""Whether a PNG file holds all of its picture: every part's checksum, and its end."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

_MAGIC = b"\x89PNG\r\n\x1a\n"


def png_is_whole(path: Path) -> bool:
    """Walk over the parts; each is a length, a name, its bytes and their checksum."""
    data = memoryview(path.read_bytes())
    if bytes(data[:8]) != _MAGIC:
        return False
    at = 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if at + 12 + length > len(data):
            return False
        (checksum,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        if zlib.crc32(data[at + 4 : at + 8 + length]) != checksum:
            return False
        if bytes(data[at + 4 : at + 8]) == b"IEND":
            return True
        at += 12 + length
    return False
