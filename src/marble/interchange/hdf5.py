"""HDF5 that somebody else wrote, read without trusting it.

An HDF5 file can point at other files (external links, external storage, virtual datasets), claim sizes that are not
there, unpack to a thousand times its size, or ask for a filter that is code. So: every link is looked at before it is
followed, every dataset's description before a number of it is read, and what does not belong in a file of features is
refused with the name of the file, the dataset and the reason. Numbers are the only thing ever read from a dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from marble.errors import BagError, IntegrityError, NonFiniteError
from marble.interchange.hdf5_heap import heap_is_sound

Array = npt.NDArray[Any]

MAX_BYTES = 16 << 30
MAX_EXPANSION = 200  # declared bytes per byte of file; real features stay below 10, gzip can reach 1000
ALWAYS_ALLOWED_BYTES = 1 << 20  # below this the expansion does not matter
MAX_CHUNK_BYTES = 1 << 30  # one chunk is unpacked in one piece
MAX_OBJECTS = 10_000
MAX_ATTRIBUTE_BYTES = 1 << 16
BLOCK_BYTES = 64 << 20
# The only attributes ever read: strings lie in heaps of the file, and the fewer of those are touched the better.
ATTRIBUTES = {
    "custom_downsample",
    "downsample",
    "encoder",
    "extractor",
    "level0_height",
    "level0_magnification",
    "level0_width",
    "mpp",
    "patch_size",
    "patch_size_level0",
    "slide_id",
    "stamp_version",
    "target_magnification",
    "tile",
    "tile_size",
    "tile_size_px",
    "tile_size_um",
    "unit",
}
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
# What h5py raises for bytes that are not what the format says they are.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, UnicodeDecodeError)


class ForeignFile:
    """An open HDF5 file whose links have all been looked at. Made by :func:`open_foreign`."""

    def __init__(self, path: Path, handle: Any, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._datasets: dict[str, Any] = {}
        self._groups: dict[str, Any] = {"": handle}
        self._file_bytes = path.stat().st_size
        self._strings_are_safe: bool | None = None
        self._walk()

    @property
    def datasets(self) -> list[str]:
        """Names of all datasets, for example `level0/coords`."""
        return sorted(self._datasets)

    def children(self, group: str) -> list[str]:
        """Names of the datasets directly inside `group`, without the group's own name."""
        inside = (name.removeprefix(f"{group}/") for name in self.datasets if name.startswith(f"{group}/"))
        return [name for name in inside if "/" not in name]

    def __contains__(self, name: object) -> bool:
        return name in self._datasets

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._datasets[name].shape or ())

    def attributes(self, name: str = "") -> dict[str, Any]:
        """Those of `ATTRIBUTES` that a dataset or group has as number or text ("" is the file)."""
        owner = self._datasets.get(name, self._groups.get(name))
        if owner is None:
            return {}
        with _damage_names(self.path, f"attributes of '{name or '/'}'"):
            if self._strings_are_safe is None:
                self._strings_are_safe = heap_is_sound(self.path)
            if not self._strings_are_safe:
                raise OSError("a heap of strings in the file is damaged")
            return dict(_plain_attributes(owner))

    def numbers(self, name: str) -> Array:
        """A whole dataset of numbers, or of fixed-length bytes, once its description has been checked."""
        dataset = self._datasets.get(name)
        if dataset is None:
            raise BagError(f"no dataset '{name}' among {', '.join(self.datasets) or 'nothing'}", where=self.path)
        with _damage_names(self.path, f"dataset '{name}'"):
            self._check(name, dataset)
            values = np.empty(dataset.shape, dataset.dtype)
            rows = max(1, BLOCK_BYTES // max(1, values.nbytes // max(1, len(values)))) if values.ndim else 1
            for start in range(0, len(values) if values.ndim else 0, rows):
                block = np.s_[start : start + rows]
                values[block] = dataset[block]
                if values.dtype.kind == "f" and not np.isfinite(values[block]).all():
                    bad = ~np.isfinite(values[block]).reshape(len(values[block]), -1).all(axis=1)
                    row = start + int(bad.argmax())
                    raise NonFiniteError(f"dataset '{name}' holds NaN or infinity in row {row}", where=self.path)
        return values

    def _walk(self) -> None:
        waiting = [""]
        seen = {h5py.h5o.get_info(self._groups[""].id).addr}
        while waiting:
            prefix = waiting.pop()
            group = self._groups[prefix]
            for name in group:
                full = f"{prefix}/{name}" if prefix else name
                link = group.get(name, getlink=True)
                if not isinstance(link, h5py.HardLink):
                    kind = "an external link" if isinstance(link, h5py.ExternalLink) else "a soft link"
                    raise _refused(self.path, full, f"is {kind}, which is never followed")
                item = group[name]
                address = h5py.h5o.get_info(item.id).addr
                if address in seen or len(seen) >= MAX_OBJECTS:
                    reason = "is reached in two ways" if address in seen else f"is one of more than {MAX_OBJECTS:,}"
                    raise _refused(self.path, full, reason)
                seen.add(address)
                if isinstance(item, h5py.Group):
                    self._groups[full] = item
                    waiting.append(full)
                elif isinstance(item, h5py.Dataset):
                    self._check_place(full, item)
                    self._datasets[full] = item

    def _check_place(self, name: str, dataset: Any) -> None:
        """No dataset of the file may hold its numbers anywhere else, whether we read it or not."""
        if dataset.is_virtual:
            raise _refused(self.path, name, "is a virtual dataset: its numbers are in other files")
        if dataset.external:
            raise _refused(self.path, name, "has external storage: its numbers are in other files")

    def _check(self, name: str, dataset: Any) -> None:
        kind = dataset.dtype.kind
        if kind not in "iufS" or dataset.dtype.subdtype is not None:
            raise _refused(self.path, name, f"holds {_kind(dataset.dtype)}, not plain numbers")
        plan = dataset.id.get_create_plist()
        codes = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        unknown = [code for code in codes if code not in _FILTERS]
        if unknown:
            known = ", ".join(_FILTERS.values())
            raise _refused(self.path, name, f"uses HDF5 filter {unknown[0]}; only {known} are read")
        declared = prod(dataset.shape) * dataset.dtype.itemsize
        chunk = prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
        if declared > self._max_bytes:
            raise _refused(self.path, name, f"declares {declared:,} bytes; the limit is {self._max_bytes:,}")
        if declared > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * self._file_bytes):
            reason = f"declares {declared:,} bytes in a file of {self._file_bytes:,}: more than {MAX_EXPANSION} times"
            raise _refused(self.path, name, reason)
        if chunk > max(MAX_CHUNK_BYTES, ALWAYS_ALLOWED_BYTES):
            raise _refused(self.path, name, f"has chunks of {chunk:,} bytes; the limit is {MAX_CHUNK_BYTES:,}")
        if declared and not dataset.id.get_storage_size():
            raise _refused(self.path, name, "was declared but never written")
        if dataset.chunks and (lacking := _chunks_of(dataset) - dataset.id.get_num_chunks()) > 0:  # read as zeros
            raise _refused(self.path, name, f"was not written to its end: {lacking:,} of its chunks are missing")


def _chunks_of(dataset: Any) -> int:
    """How many chunks a chunked dataset has if all of it was written."""
    return prod(-(-side // step) for side, step in zip(dataset.shape, dataset.chunks, strict=True))


@contextmanager
def open_foreign(path: Path, *, max_bytes: int = MAX_BYTES) -> Iterator[ForeignFile]:
    """Open an HDF5 file of another tool; any damage or trick is an error that names the file."""
    if not path.is_file():
        raise BagError("no such file", where=path)
    try:
        handle = h5py.File(path, "r", locking=False)
    except _DAMAGE as error:
        raise _damaged(path, "the file", error) from None
    with handle:
        with _damage_names(path, "the file"):
            opened = ForeignFile(path, handle, max_bytes)
        yield opened


def _plain_attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    for name in sorted(ATTRIBUTES & set(owner.attrs)):
        handle = owner.attrs.get_id(name)
        text = h5py.check_string_dtype(handle.dtype) is not None
        size = prod(handle.shape or (1,)) * handle.dtype.itemsize
        if size > MAX_ATTRIBUTE_BYTES or not (text or handle.dtype.kind in "iufb"):
            continue
        value = owner.attrs[name]
        if isinstance(value, bytes | np.bytes_):
            value = value.decode(errors="replace")
        yield name, value.item() if isinstance(value, np.generic) else value


@contextmanager
def _damage_names(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(path, what, error) from None


def _damaged(path: Path, what: str, error: BaseException) -> IntegrityError:
    if not _has_signature(path):
        return IntegrityError(
            "not an HDF5 file, whatever its name says", where=path, hint="Nothing else is read from it"
        )
    reason = " ".join(str(error).split())[:200]
    return IntegrityError(f"{what} cannot be read: {reason}", where=path, hint="Copy or make the file again")


def _has_signature(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def _kind(dtype: Any) -> str:
    if dtype.kind == "O":
        return "variable-length values or references"
    return "records" if dtype.kind == "V" else f"values of type {dtype}"


def _refused(path: Path, name: str, reason: str) -> BagError:
    return BagError(f"dataset '{name}' {reason}", where=path, hint="Refused; write plain datasets with plain numbers")
