"""Is it safe to ask the HDF5 library for a string?

It keeps strings in heaps inside the file and walks a heap object by object. Free space that claims to be smaller than
its own header makes it walk on the spot for ever, so heaps are checked before the first string is asked for.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SIGNATURE = b"GCOL\x01\x00\x00\x00"
_HEADER = struct.Struct("<HHIQ")  # index (0: free space), references, reserved, size


def heap_is_sound(path: Path) -> bool:
    """Whether the objects of every heap of the file fill it exactly, up to a rest too small for one more."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(_SIGNATURE)
        while start >= 0:
            if not _is_sound(content, start):
                return False
            start = content.find(_SIGNATURE, start + 1)
    return True


def _is_sound(content: mmap.mmap, start: int) -> bool:
    if start + 16 > len(content):
        return False
    size = int.from_bytes(content[start + 8 : start + 16], "little")
    at, end = start + 16, start + size
    if size < 16 or end > len(content):
        return False
    while end - at >= _HEADER.size:
        index, _, _, length = _HEADER.unpack_from(content, at)
        if index == 0:  # free space: its size counts the header, and it is the last
            return at + int(length) == end
        at += _HEADER.size + (int(length) + 7) // 8 * 8
    return at <= end
