"""LazySlide's stores (SpatialData in zarr): features in `tables`, outlines of tiles in `shapes`, sizes in attributes.

SLIDE.zarr/tables/MODEL_TILES/X             (N, D) features, as AnnData keeps them
SLIDE.zarr/tables/MODEL_TILES/obs/tile_id   (N,) which tile a row is of
SLIDE.zarr/shapes/TILES/shapes.parquet      the tiles' outlines in level-0 pixels
SLIDE.zarr                                  attributes: tile_spec by TILES, slide_properties

A store may hold several sets of tiles: the one of the level's magnification is taken.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marble.errors import BagError, IntegrityError
from marble.interchange.attributes import number, whole_number
from marble.interchange.grids import Floats
from marble.interchange.tiles import LevelHints, Tiles
from marble.interchange.zarr_arrays import attributes, is_array, needs, read_array
from marble.magnification import magnification_at

SUFFIX = ".zarr"
_POLYGON, _CORNERS = 3, 5  # of well-known binary; a rectangle's ring ends where it began


@dataclass(frozen=True)
class _Table:
    """A table of features: its folder, whose tiles they are of, and what is said of these."""

    folder: Path
    region: str
    key: str  # the column that says which tile a row is of
    spec: Mapping[str, Any]

    @property
    def encoder(self) -> str:
        return self.folder.name.removesuffix(f"_{self.region}")

    @property
    def magnification(self) -> float | None:
        mpp = number(self.spec.get("mpp"))
        return None if mpp is None else magnification_at(mpp)


def check_packages() -> None:
    """Refuse in one line if what these stores are read with is not installed."""
    needs("zarr", "pyarrow")


def read_lazyslide(path: Path, hints: LevelHints) -> Tiles:
    """The tiles of one slide at one level."""
    check_packages()
    about = attributes(path)
    table = _one(_tables(path, about), hints, path)
    features = read_array(table.folder / "X", whole=True)
    boxes = _boxes(path / "shapes" / table.region / "shapes.parquet", table.key)
    ids = read_array(table.folder / "obs" / table.key)
    if len(np.unique(ids)) != len(ids) or len(ids) != len(features):
        raise BagError(f"{len(features)} features of {len(np.unique(ids))} tiles", where=table.folder)
    strangers = [int(each) for each in ids.tolist() if int(each) not in boxes]
    if strangers:
        raise BagError(f"tile {strangers[0]} has features and no outline in '{table.region}'", where=table.folder)
    corners = np.array([boxes[int(each)] for each in ids.tolist()], dtype=np.float64).reshape(
        -1, 3
    )  # (N, 3) x, y, side
    slide = about.get("slide_properties")
    return Tiles(
        tool="lazyslide",
        features=features,
        xy=corners[:, :2],
        extent=_one_side(corners[:, 2], path),
        tile_px=whole_number(table.spec.get("width")),
        encoder=table.encoder,
        magnification=table.magnification,
        **_slide(slide if isinstance(slide, dict) else {}),
    )


def _tables(path: Path, about: Mapping[str, Any]) -> list[_Table]:
    """Every table that has features of tiles."""
    specs = about.get("tile_spec")
    specs = specs if isinstance(specs, dict) else {}
    found = []
    for folder in sorted((path / "tables").iterdir()) if (path / "tables").is_dir() else []:
        if not folder.is_dir() or not is_array(folder / "X"):
            continue
        said = attributes(folder)
        region, key = said.get("region"), said.get("instance_key")
        region = region[0] if isinstance(region, list) and len(region) == 1 else region
        if isinstance(region, str) and isinstance(key, str) and Path(region).name == region and Path(key).name == key:
            spec = specs.get(region)
            found.append(_Table(folder, region, key, spec if isinstance(spec, dict) else {}))
    return found


def _one(tables: list[_Table], hints: LevelHints, path: Path) -> _Table:
    """The table of the level's magnification and of the encoder that was asked for."""
    if not tables:
        raise BagError("no table of features of tiles", where=path, hint="Extract features with LazySlide first")
    at_level = [
        table for table in tables
        if table.magnification is None or abs(table.magnification / hints.magnification - 1) <= 0.01
    ]  # fmt: skip
    if not at_level:
        known = ", ".join(sorted({f"{table.magnification:g}x" for table in tables}))
        raise BagError(f"no tiles at {hints.magnification:g}x, but at {known}", where=path)
    fitting = [table for table in at_level if hints.encoder in (None, table.encoder, table.folder.name)]
    if len(fitting) != 1:
        names = ", ".join(table.encoder for table in at_level)
        raise BagError(f"holds features of {names}", where=path, hint="Say which with --encoder")
    return fitting[0]


def _boxes(path: Path, key: str) -> dict[int, tuple[float, float, float]]:
    """{tile: (x, y, side)} from the outlines; where no column numbers the tiles, they are numbered as they stand."""
    import pyarrow
    from pyarrow import parquet

    if not path.is_file():
        raise BagError("no outlines of the tiles", where=path)
    try:
        columns = [name for name in (key, "geometry") if name in parquet.read_schema(path).names]
        table = parquet.read_table(path, columns=columns).to_pydict()
        tiles = table.get(key, range(len(table["geometry"])))
        return {int(tile): _square(outline) for tile, outline in zip(tiles, table["geometry"], strict=True)}
    except (pyarrow.ArrowException, KeyError, TypeError, ValueError, struct.error, OSError) as error:
        raise IntegrityError(f"outlines cannot be read: {str(error)[:200]}", where=path) from None


def _square(outline: bytes) -> tuple[float, float, float]:
    """(x, y, side) of a rectangle in well-known binary, if it is a square."""
    order = "<" if outline[:1] == b"\x01" else ">"
    kind, rings, corners = struct.unpack_from(f"{order}III", outline, 1)
    if (kind, rings, corners) != (_POLYGON, 1, _CORNERS):
        raise ValueError("a tile's outline is no rectangle")
    points = np.frombuffer(outline, f"{order}f8", 2 * _CORNERS, 13).reshape(_CORNERS, 2)
    (x, y), (width, height) = points.min(0), np.ptp(points, axis=0)
    if abs(width - height) > 1:  # a pixel of rounding
        raise ValueError(f"a tile of {width:g} x {height:g} pixels is no square")
    return float(x), float(y), float(width)


def _one_side(sides: Floats, path: Path) -> float | None:
    if not len(sides):
        return None
    if np.ptp(sides) > 1:
        raise BagError(f"tiles are {sides.min():g} to {sides.max():g} pixels wide, not all alike", where=path)
    return float(np.median(sides))


def _slide(about: Mapping[str, Any]) -> dict[str, Any]:
    """Pixel size and size of the slide."""
    shape = about.get("shape")
    size = [whole_number(side) for side in shape] if isinstance(shape, list) and len(shape) == 2 else []
    return {
        "slide_mpp": number(about.get("mpp")),
        "slide_magnification": number(about.get("magnification")),
        "slide_size_px": (size[1], size[0]) if len(size) == 2 and all(size) else None,
    }
