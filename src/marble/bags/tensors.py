"""Safetensors files, read or mapped into memory after their header has been checked byte by byte.

A safetensors file is an 8-byte length, a JSON header, and raw numbers. Nothing in it is executable, but a hostile or
damaged header can still claim sizes, overlaps or offsets that are not there, so nothing is mapped before every claim
has been compared with the file.

A file up to `MAP_FROM_BYTES` is read: whatever happens to it afterwards, the numbers stay. A larger one is mapped, so
that many fit side by side; who cuts such a file off while it is in use ends the process that uses it. Nothing here
ever does: files are replaced by renaming, which leaves a mapped one as it was.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from marble import storage
from marble.errors import IntegrityError
from marble.guarded_json import parse_json
from marble.specs import canonical_json

METADATA_KEY = "marble"
#: room for some 50,000 tensors; read as JSON, such a header takes twenty times its length in memory
MAX_HEADER_BYTES = 4 << 20
MAP_FROM_BYTES = 32 << 20
#: a tensor's sizes, of which numpy and torch take no more, and what they multiply to, zeros aside
MAX_DIMENSIONS, MAX_ELEMENTS = 64, 1 << 48
_SHOWN = 60  # characters of a name or a shape in an error
_DTYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


def to_bytes(tensors: Mapping[str, Tensor], metadata: object) -> bytes:
    """Serialise; `metadata` is kept as one canonical-JSON entry, so equal content gives equal bytes."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(contiguous, {METADATA_KEY: canonical_json(metadata).decode()})


def map_file(path: str | Path) -> tuple[dict[str, Tensor], Any]:
    """Return every tensor as a view of the file, read or mapped (copy-on-write), and the metadata."""
    storage.fetch(Path(path))
    entries, metadata, data_start = read_header(path)
    expected = data_start + max((end for *_, end in entries.values()), default=0)
    with open(path, "rb") as file:
        if expected <= MAP_FROM_BYTES:
            raw = np.empty(expected, np.uint8)
            raw = raw[: file.readinto(raw.data)]  # straight into its place: one copy, and no zeros written before it
        else:
            # A plain array over the map: numpy's own memmap type makes every view of it several times slower.
            raw = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
    if len(raw) < expected:
        raise _bad(path, "was cut off while it was being read")
    tensors: dict[str, Tensor] = {}
    for name, (dtype, shape, begin, end) in entries.items():
        flat = raw[data_start + begin : data_start + end].view(dtype)
        tensors[name] = torch.from_numpy(flat.reshape(shape))
    return tensors, metadata


def read_header(path: str | Path) -> tuple[dict[str, tuple[np.dtype[Any], tuple[int, ...], int, int]], Any, int]:
    """Parse and check the header: {name: (dtype, shape, begin, end)}, metadata, and where the data starts."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise _bad(path, "shorter than its own header")
        (length,) = struct.unpack("<Q", prefix)
        if length > size - 8:
            raise _bad(path, f"not a safetensors file: header length {length} does not fit a file of {size} bytes")
        if length > MAX_HEADER_BYTES:
            raise _bad(path, f"its header claims {length:,} bytes; no more than {MAX_HEADER_BYTES:,} are read")
        text = file.read(length)
    try:
        header = parse_json(text, where=path)
    except IntegrityError as error:
        raise _bad(path, f"not a safetensors file: its header is {error.what}") from None
    if not isinstance(header, dict):
        raise _bad(path, "not a safetensors file: its header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    entries = {name: _entry(path, name, entry) for name, entry in header.items()}
    _check_layout(path, entries, size - 8 - length)
    return entries, _metadata(path, metadata), 8 + length


def _entry(path: str | Path, name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    try:
        dtype = _DTYPES[entry["dtype"]]
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        raise _bad(path, f"tensor {_shown(name)} has a malformed or unsupported header entry") from None
    if len(shape) > MAX_DIMENSIONS:
        raise _bad(path, f"tensor {_shown(name)} has {len(shape):,} dimensions; {MAX_DIMENSIONS} are the most")
    if not whole or end - begin != prod(shape) * dtype.itemsize or prod(filter(None, shape)) > MAX_ELEMENTS:
        what = f"shape {str(shape)[:_SHOWN]} does not fit its {str(end)[:_SHOWN]} - {str(begin)[:_SHOWN]} bytes"
        raise _bad(path, f"tensor {_shown(name)}: {what}")
    return dtype, shape, begin, end


def _check_layout(path: str | Path, entries: Mapping[str, tuple[Any, Any, int, int]], data_bytes: int) -> None:
    at = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != at:
            raise _bad(
                path, f"tensor {_shown(name)} starts at byte {begin}, expected {at}: tensors overlap or leave gaps"
            )
        at = end
    if at != data_bytes:
        raise _bad(path, f"truncated or padded: header describes {at} bytes of data, the file holds {data_bytes}")


def _metadata(path: str | Path, metadata: Any) -> Any:
    if metadata is None:
        return None
    text = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    if text is None:
        return None
    try:
        return parse_json(text, where=path) if isinstance(text, str) else None
    except IntegrityError as error:
        raise _bad(path, f"metadata entry '{METADATA_KEY}' is {error.what}") from None


def _shown(name: str) -> str:
    """A tensor's name as errors show it: whoever made the file may have given it any length."""
    return f"'{name}'" if len(name) <= _SHOWN else f"'{name[:_SHOWN]}...'"


def _bad(path: str | Path, what: str) -> IntegrityError:
    return IntegrityError(what, where=path, hint="Make or copy the file again; `marble verify` lists every damaged one")
