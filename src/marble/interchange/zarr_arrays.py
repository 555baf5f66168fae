"""Zarr stores that somebody else wrote: what they say is read first, and only plain numbers are ever decoded.

A zarr array may name codecs that unpickle objects, declare any size, or lack chunks, which then read as zeros. Its
metadata is plain JSON, so all of this is seen before a byte of the data is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from marble.errors import BagError, IntegrityError, UnavailableError
from marble.guarded_json import MAX_JSON_BYTES, parse_json
from marble.interchange.hdf5 import MAX_BYTES, Array

#: compressors of numbers, and what stands around them in the third version of the format
_CODECS = frozenset({"blosc", "bytes", "crc32c", "gzip", "lz4", "sharding_indexed", "zlib", "zstd"})


def needs(*modules: str) -> None:
    """Refuse in one line if a package of the extra is not installed."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UnavailableError(
            f"zarr stores are read with {' and '.join(missing)}, not installed here",
            hint="Install it with pip install 'marble-wsi[zarr]', or save features and coordinates as .npy or HDF5",
        )


def attributes(node: Path) -> dict[str, Any]:
    """What a group or an array says of itself; nothing if it says nothing."""
    if (node / "zarr.json").is_file():
        found = _json(node / "zarr.json").get("attributes", {})
    else:
        found = _json(node / ".zattrs") if (node / ".zattrs").is_file() else {}
    if not isinstance(found, dict):
        raise IntegrityError("attributes are not a mapping", where=node)
    return found


def is_array(node: Path) -> bool:
    return (node / ".zarray").is_file() or (
        (node / "zarr.json").is_file() and _json(node / "zarr.json").get("node_type") == "array"
    )


def read_array(node: Path, *, whole: bool = False) -> Array:
    """(…) the numbers of an array; with `whole`, every chunk must be there. Zeros may stand for chunks otherwise."""
    if not is_array(node):
        raise BagError(f"no array '{node.name}'", where=node.parent)
    _check(node)
    needs("zarr")
    import zarr

    try:
        opened = zarr.open_array(str(node), mode="r")
        if whole and opened.nchunks_initialized < opened.nchunks:
            lost = opened.nchunks - opened.nchunks_initialized
            raise IntegrityError(
                f"{lost} of {opened.nchunks} chunks are missing", where=node, hint="Copy or make the store again"
            )
        return np.asarray(opened[...])
    except (ValueError, TypeError, RuntimeError, KeyError, OSError) as error:
        raise IntegrityError(
            f"cannot be read: {str(error)[:200]}", where=node, hint="Copy or make the store again"
        ) from None


def _check(node: Path) -> None:
    """Numbers of a size that can be, through codecs that only compress."""
    if (node / "zarr.json").is_file():
        about = _json(node / "zarr.json")
        dtype, codecs = about.get("data_type"), _named(about.get("codecs", ()), "name", node)
        chunks = about.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
    else:
        about = _json(node / ".zarray")
        chunks, dtype = about.get("chunks"), about.get("dtype")
        codecs = _named([one for one in (about.get("compressor"), *(about.get("filters") or ())) if one], "id", node)
    try:
        kind = np.dtype(dtype if isinstance(dtype, str) else "O")
    except TypeError:
        kind = np.dtype("O")
    if kind.kind not in "iuf":
        raise BagError(f"holds {dtype}, not numbers; pickled objects are never read", where=node)
    strange = sorted(set(codecs) - _CODECS)
    if strange:
        raise BagError(f"codec '{strange[0]}' is not read; known: {', '.join(sorted(_CODECS))}", where=node)
    for what, sizes in (("array", about.get("shape")), ("chunk", chunks)):
        whole = [size for size in sizes if type(size) is int and size >= 0] if isinstance(sizes, list) else None
        if whole is None or whole != sizes or prod(whole) * kind.itemsize > MAX_BYTES:
            raise BagError(
                f"{what} of shape {str(sizes)[:80]} is none, or larger than any slide's features", where=node
            )


def _named(codecs: Any, key: str, node: Path) -> list[str]:
    """The names of codecs, those inside of shards among them."""
    if not isinstance(codecs, Sequence) or not all(isinstance(one, Mapping) for one in codecs):
        raise IntegrityError("codecs are not a list", where=node)
    found = []
    for one in codecs:
        found.append(str(one.get(key)))
        inner = one.get("configuration")
        if isinstance(inner, Mapping):
            for name in ("codecs", "index_codecs"):
                found += _named(inner.get(name, ()), key, node)
    return found


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise IntegrityError(f"{path.stat().st_size:,} bytes of JSON", where=path)
    found = parse_json(path.read_bytes(), where=path)
    if not isinstance(found, dict):
        raise IntegrityError("not a JSON object", where=path)
    return found
