"""Numpy files that somebody else wrote: header first, numbers only.

A `.npy` file may hold pickled objects; here its header is read on its own, and anything but numbers is refused before a
byte of the data is touched.
"""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from marble.errors import BagError, IntegrityError
from marble.interchange.hdf5 import MAX_BYTES, Array


def read_npy(path: Path) -> Array:
    """(…) the array of a `.npy` file, memory-mapped."""
    with open(path, "rb") as file:
        shape, fortran, dtype = _header(file, path)
        start = file.tell()
    needed = prod(shape) * dtype.itemsize
    if start + needed > path.stat().st_size:
        raise IntegrityError(f"truncated: {needed:,} bytes declared", where=path, hint="Copy or make the file again")
    if needed == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def read_npz(path: Path, key: str) -> Array:
    """(…) one array of a `.npz` archive."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as member:
            shape, fortran, dtype = _header(cast(BinaryIO, member), path)
            needed = prod(shape) * dtype.itemsize
            if needed > archive.getinfo(f"{key}.npy").file_size or needed > MAX_BYTES:
                raise IntegrityError(f"array '{key}' declares {needed:,} bytes that are not there", where=path)
            flat = np.frombuffer(member.read(needed), dtype)
            return flat.reshape(shape, order="F" if fortran else "C")
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise IntegrityError(
            f"array '{key}' cannot be read: {error}", where=path, hint="Copy or make the file again"
        ) from None


def _header(file: BinaryIO, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
    except (ValueError, KeyError, EOFError, SyntaxError) as error:
        raise IntegrityError(f"not a numpy array file: {error}", where=path) from None
    if dtype.kind not in "iuf":
        raise BagError(f"holds {dtype}, not numbers; pickled objects are never read", where=path)
    return shape, fortran, dtype
