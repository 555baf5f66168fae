"""`Tiles`: one level of one slide as a tool wrote it, and what the user may say about files that do not say it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Literal

import numpy as np

from marble.errors import BagError, NonFiniteError
from marble.interchange.grids import Floats, pitch
from marble.interchange.hdf5 import Array

CoordinateUnit = Literal["px", "um"]
Anchor = Literal["top-left", "centre"]
LIMIT = 2**31
CONTRADICTION = 1.4  # magnifications are steps of 2; pixel sizes lie within 15 % of theirs, rarely within 25 %
NO_PLACES: Array = np.empty((0, 2))


@dataclass(frozen=True, kw_only=True)
class FileHints:
    """What the user says about files that do not say it; it goes before what the files say.

    Args:
        tile_px: side of a tile in pixels as it was encoded.
        slide_mpp: um per level-0 pixel of the slides.
        encoder: name of the encoder, or which of several to take.
        units: `px` or `um`, of the coordinates.
        anchor: `top-left` or `centre`: what of the tile the coordinates point at.
        layout: the tool, when it cannot be seen from the files.
        no_coordinates: places are not known and not needed; cells are then made up, whatever the files hold.
    """

    tile_px: int | None = None
    slide_mpp: float | None = None
    encoder: str | None = None
    units: CoordinateUnit | None = None
    anchor: Anchor | None = None
    layout: str | None = None
    no_coordinates: bool = False


@dataclass(frozen=True, kw_only=True)
class LevelHints(FileHints):
    """The same about one level's files.

    Args:
        magnification: nominal, 10 = 1 um/px.
        extent: side of a tile in level-0 pixels (or um, if the coordinates are).
    """

    magnification: float
    extent: float | None = None


@dataclass(frozen=True)
class Tiles:
    """Features (N, D) and coordinates (N, 2) in the order of the file, with what is known of their grid."""

    tool: str
    features: Array
    xy: Array
    unit: CoordinateUnit = "px"
    anchor: Anchor = "top-left"
    extent: float | None = None
    tile_px: int | None = None
    encoder: str | None = None
    version: str | None = None
    magnification: float | None = None
    slide_mpp: float | None = None
    slide_size_px: tuple[int, int] | None = None
    parent: Array | None = None
    slide_magnification: float | None = None
    placeless: str | None = None  # where coordinates were looked for, if there are none

    @property
    def source(self) -> str:
        return self.tool if self.version is None else f"{self.tool} {self.version}"


def checked(tiles: Tiles, hints: LevelHints, path: Path) -> Tiles:
    """The tiles with the user's word put in, the corner as anchor and the side known; or the reason why not."""
    if tiles.features.ndim == 0 or 0 in (len(tiles.features), 1 if tiles.placeless else len(tiles.xy)):
        raise BagError("no tiles: a slide without tokens predicts nothing", where=path)
    features = _matrix(tiles.features, path)
    if hints.no_coordinates:
        return _in_a_square(replace(tiles, features=features, encoder=hints.encoder or tiles.encoder))
    if tiles.placeless:
        raise BagError(
            f"no coordinates: {tiles.placeless}",
            where=path,
            hint="Give files that have them; or import one level with --no-coordinates, for models that read no places",
        )
    places = _without_leading_axis(tiles.xy)
    if places.ndim != 2 or places.shape[1] != 2 or places.dtype.kind not in "iuf":
        raise BagError(f"coordinates must be (N, 2) numbers, got {tiles.xy.shape} {tiles.xy.dtype}", where=path)
    xy = places.astype(np.float64)
    if len(features) != len(xy):
        raise BagError(f"{len(features)} features but {len(xy)} coordinates", where=path)
    if not np.isfinite(xy).all():
        raise NonFiniteError("coordinates hold NaN or infinity", where=path)
    if xy.min() < 0 or xy.max() >= LIMIT:
        row = int(((xy < 0) | (xy >= LIMIT)).any(axis=1).argmax())
        raise BagError(f"coordinates {xy[row].tolist()} of row {row} are negative or beyond any slide", where=path)
    if tiles.magnification is not None and abs(tiles.magnification / hints.magnification - 1) > 0.01:
        raise BagError(
            f"the file says {tiles.magnification:g}x, the level was given as {hints.magnification:g}x",
            where=path,
            hint="Give every folder with its own magnification, for example --level 10:FOLDER",
        )
    if hints.extent is None:
        _check_attributes(tiles, path)
    tiles = replace(
        tiles,
        features=features,
        unit=hints.units or tiles.unit,
        anchor=hints.anchor or tiles.anchor,
        tile_px=hints.tile_px or tiles.tile_px,
        encoder=hints.encoder or tiles.encoder,
        slide_mpp=hints.slide_mpp or tiles.slide_mpp,
    )
    extent = hints.extent or _side(tiles, xy, path)
    corner = xy - extent / 2 if tiles.anchor == "centre" else xy
    return replace(tiles, xy=corner, extent=extent)


def _in_a_square(tiles: Tiles) -> Tiles:
    """Tiles without places, row by row in a square of cells: in order, but where they lay is not known."""
    order = np.arange(len(tiles.features))
    width = ceil(len(order) ** 0.5)
    xy = np.stack([order % width, order // width], axis=1).astype(np.float64)
    placeless = tiles.placeless or "not wanted"
    return replace(tiles, xy=xy, unit="px", extent=1.0, tile_px=None, magnification=None, placeless=placeless)


def in_pixels(tiles: Tiles) -> Tiles:
    """Coordinates in um as level-0 pixels; `slide_mpp` must be known."""
    assert tiles.slide_mpp is not None
    assert tiles.extent is not None
    if tiles.unit == "px":
        return tiles
    mpp = tiles.slide_mpp
    return replace(tiles, unit="px", xy=np.round(tiles.xy / mpp), extent=float(round(tiles.extent / mpp)))


def _check_attributes(tiles: Tiles, path: Path) -> None:
    """Refuse a side that is not the tile's pixels at its magnification: scans are measured, so it need not be exact."""
    known = (tiles.extent, tiles.tile_px, tiles.magnification, tiles.slide_magnification)
    if tiles.unit != "px" or None in known:
        return
    extent, tile_px, magnification, scan = (float(one or 0) for one in known)
    side = tile_px * scan / magnification
    if not 1 / CONTRADICTION < extent / side < CONTRADICTION:
        raise BagError(
            f"the file contradicts itself: a tile's side is {extent:g} pixels of the scan, but {tile_px:g} pixels at "
            f"{magnification:g}x of a {scan:g}x scan are {side:g}",
            where=path,
            hint="Say the side with --extents, one per level, if you know which of them is right",
        )


def _side(tiles: Tiles, xy: Floats, path: Path) -> float:
    """The tile's side: from the file; in um, where tools round it up to whole pixels, from the coordinates if close."""
    said = tiles.extent
    if said is not None and said <= 0:
        raise BagError(f"tile size {said:g} is not positive", where=path)
    if said is not None and tiles.unit == "px":
        return said
    if said is not None and tiles.slide_mpp is not None:
        return ceil(said / tiles.slide_mpp - 1e-6) * tiles.slide_mpp
    found = pitch(xy)
    if said is not None:
        return found if found is not None and abs(found / said - 1) <= 0.02 else said
    if found is None:
        raise BagError(
            "the tile size is not in the file and cannot be seen from the coordinates",
            where=path,
            hint="Give the side of a tile in level-0 pixels with --extents, one per level",
        )
    return found


def _without_leading_axis(values: Array) -> Array:
    """(N, ...) from (1, N, ...): some tools leave a batch's axis on what they write."""
    return values[0] if values.ndim == 3 and values.shape[0] == 1 else values


def _matrix(features: Array, path: Path) -> Array:
    """(N, D) float16 or float32."""
    features = _without_leading_axis(features)
    if features.ndim != 2 or features.dtype.kind != "f":
        raise BagError(f"features must be (N, D) floats, got {features.shape} {features.dtype}", where=path)
    if features.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            features = features.astype(np.float32)
    features = features.astype(features.dtype.newbyteorder("="), copy=False)
    for start in range(0, len(features), 1 << 14):
        if not np.isfinite(features[start : start + (1 << 14)]).all():
            raise NonFiniteError("features hold NaN or infinity, or overflow float32", where=path)
    return features
