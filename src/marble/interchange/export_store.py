"""Bags -> HDF5 that other tools read: one TRIDENT-shaped file per slide and level, and one with all levels.

    OUT/10x_256px_0px_overlap/features_uni_v1/SLIDE.h5    features (N, D) float32, coords (N, 2) int64
    OUT/multilevel/SLIDE.h5                               levels/K/{features,coords,parent}

Coordinates are level-0 pixels of the top-left corner. What a bag does not know of its slide is left out.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from marble import files
from marble.bags.bag import Bag
from marble.bags.provenance import Geometry
from marble.bags.record import file_stem
from marble.bags.store import BagStore
from marble.bags.survey import survey
from marble.errors import BagError, InputError, MarbleError
from marble.interchange.hdf5 import Array
from marble.version import VERSION

UNKNOWN_ENCODER = "unknown"
_CHUNK_BYTES = 1 << 20


def export_store(store: Path, out: Path, failed: list[tuple[str, str]] | None = None) -> Iterator[Path]:
    """Write every bag of a store, or of the only store below a folder, yielding each file once it is complete.

    A bag that cannot be exported is put into `failed` with its reason, if that is given, and the rest goes on.
    """
    bags = BagStore.find(store)
    slides = list(survey(bags))
    if not slides:
        raise InputError("no bags to export", where=store, hint="Make them with `marble extract` or `marble import`")
    for slide_id, error in slides:
        try:
            if error is not None:
                raise error
            yield from _export(bags.load(slide_id), out, bags.bag_path(slide_id))
        except MarbleError as reason:
            if failed is None:
                raise
            failed.append((slide_id, str(reason)))


def _export(bag: Bag, out: Path, where: Path) -> Iterator[Path]:
    provenance = bag.provenance
    if len(provenance.levels) != bag.depth or provenance.l0_origin_px is None:
        raise BagError(
            "the bag does not know its tiles' size or place on the slide, which the format needs",
            where=where,
            hint="Import it again from files with coordinates, with --tile-px, the side of a tile as it was encoded",
        )
    name = f"{file_stem(bag.slide_id)}.h5"
    for k, geometry in enumerate(provenance.levels):
        folder = f"{geometry.magnification:g}x_{geometry.tile_px}px_0px_overlap"
        target = out / folder / f"features_{file_stem(_encoder(bag, k))}" / name
        yield files.publish(target, _hdf5_bytes(bag, {"": k}))
    yield files.publish(out / "multilevel" / name, _hdf5_bytes(bag, {f"levels/{k}/": k for k in range(bag.depth)}))


def _hdf5_bytes(bag: Bag, places: dict[str, int]) -> bytes:
    """An HDF5 file with the levels at the given group prefixes; equal bags give equal bytes."""
    memory = io.BytesIO()
    with h5py.File(memory, "w", track_order=False) as file:
        file.attrs["slide_id"] = bag.slide_id
        file.attrs["source"] = f"marble {VERSION}"
        for prefix, k in places.items():
            _write_level(file, prefix, bag, k, with_parent=len(places) > 1)
    return memory.getvalue()


def _write_level(file: Any, prefix: str, bag: Bag, k: int, *, with_parent: bool) -> None:
    level, geometry = bag.levels[k], bag.provenance.levels[k]
    features = level.features.float().numpy()  # (N, D)
    written = _dataset(file, f"{prefix}features", features)
    written.attrs["encoder"] = _encoder(bag, k)
    written.attrs["name"] = bag.slide_id
    written.attrs["savetodir"] = ""
    coords = _dataset(file, f"{prefix}coords", level0_coordinates(bag, k))
    for key, value in _coordinate_attributes(bag, geometry).items():
        coords.attrs[key] = value
    if with_parent and level.parent is not None:
        _dataset(file, f"{prefix}parent", level.parent.numpy())


def level0_coordinates(bag: Bag, k: int) -> Array:
    """(N, 2) int64 (x, y) of every tile's top-left corner in level-0 pixels."""
    assert bag.is_placed
    return np.ascontiguousarray(bag.boxes(k)[:, :2])


def _dataset(file: Any, name: str, values: Array) -> Any:
    """Chunked by about 1 MiB of whole rows: one-row chunks, which some tools write, are slow to read."""
    row_bytes = values.itemsize * (values.shape[1] if values.ndim > 1 else 1)
    rows = min(len(values), max(1, _CHUNK_BYTES // row_bytes))
    return file.create_dataset(name, data=values, chunks=(rows, *values.shape[1:]), track_times=False)


def _coordinate_attributes(bag: Bag, geometry: Geometry) -> dict[str, Any]:
    full = geometry.magnification * geometry.l0_extent_px / geometry.tile_px
    known: dict[str, Any] = {
        "patch_size": geometry.tile_px,
        "patch_size_level0": geometry.l0_extent_px,
        "level0_magnification": _plain(full),
        "target_magnification": _plain(geometry.magnification),
        "overlap": 0,
        "name": bag.slide_id,
        "savetodir": "",
    }
    if bag.provenance.slide is not None:
        known["level0_width"] = bag.provenance.slide.l0_width_px
        known["level0_height"] = bag.provenance.slide.l0_height_px
    return known


def _encoder(bag: Bag, k: int) -> str:
    encoders = bag.provenance.encoders
    return UNKNOWN_ENCODER if not encoders else encoders[k if len(encoders) > 1 else 0].name


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value
