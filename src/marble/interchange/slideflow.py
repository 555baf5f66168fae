"""Slideflow's bags: features beside `SLIDE.index.npz` (centres in level-0 pixels) and one `bags_config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marble import files
from marble.errors import BagError
from marble.interchange.arrays import read_npz
from marble.interchange.attributes import FEATURE_NAMES, number, text, whole_number
from marble.interchange.hdf5 import Array, open_foreign
from marble.interchange.plain import PLAIN_SUFFIXES, arrays_of, features_of
from marble.interchange.tiles import LevelHints, Tiles

CONFIG = "bags_config.json"
MAX_CONFIG_BYTES = 1 << 20


def index_of(path: Path) -> Path:
    """Where Slideflow keeps the coordinates of this slide."""
    return path.with_name(f"{path.stem}.index.npz")


def read_slideflow(path: Path, hints: LevelHints) -> Tiles:
    """One slide; the tile's side is `tile_um / slide_mpp` when both are known, else it is seen from the coordinates."""
    index = index_of(path)
    if not index.is_file():
        raise BagError(
            f"no coordinates: {index.name} is not beside it", where=path, hint="Copy it there, or give HDF5 files"
        )
    config = _config(path.parent / CONFIG)
    side_um, mpp = number(config.get("tile_um")), hints.slide_mpp
    extractor = config.get("extractor")
    return Tiles(
        tool="slideflow",
        features=_features(path),
        xy=read_npz(index, "arr_0"),
        anchor="centre",
        extent=float(int(side_um / mpp)) if side_um is not None and mpp is not None else None,
        tile_px=whole_number(config.get("tile_px")),
        encoder=text(extractor.get("class")) if isinstance(extractor, dict) else text(extractor),
    )


def _features(path: Path) -> Array:
    if path.suffix in PLAIN_SUFFIXES:
        return features_of(arrays_of(path), path)
    with open_foreign(path) as file:
        name = next((name for name in FEATURE_NAMES if name in file), None)
        if name is None:
            raise BagError(f"no features among {', '.join(file.datasets) or 'nothing'}", where=path)
        return file.numbers(name)


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise BagError(f"larger than {MAX_CONFIG_BYTES:,} bytes", where=path)
    found = files.read_json(path)
    return found if isinstance(found, dict) else {}
