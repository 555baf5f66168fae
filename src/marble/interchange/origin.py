"""What other tools' files let us say of a bag's origin, and what they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from marble.bags.provenance import MADE_UP_CELLS, EncoderIdentity, Geometry, Provenance, SlideIdentity
from marble.errors import BagError
from marble.interchange.tiles import LevelHints, Tiles, in_pixels
from marble.magnification import mpp_at


def in_one_unit(levels: Sequence[Tiles]) -> list[Tiles]:
    """All levels in level-0 pixels if that can be; else all in um."""
    units = {tiles.unit for tiles in levels}
    if units == {"px"}:
        return list(levels)
    mpp = next((tiles.slide_mpp for tiles in levels if tiles.slide_mpp is not None), None)
    if mpp is not None:
        return [in_pixels(replace(tiles, slide_mpp=mpp)) for tiles in levels]
    if len(units) > 1:
        raise BagError(
            "one level's coordinates are in pixels, another's in um",
            hint="Give the slides' um per pixel with --slide-mpp",
        )
    return list(levels)


def provenance_of(
    slide_id: str,
    levels: Sequence[Tiles],
    hints: Sequence[LevelHints],
    origin: tuple[float, float],
    notes: dict[str, Any],
) -> Provenance:
    """Everything that is known; what was assumed, or is not known, is said in the notes."""
    notes = {**notes, "magnifications": [one.magnification for one in hints]}
    sources = sorted({tiles.source for tiles in levels})
    scale = _plane(levels, notes)
    geometry = [] if scale is None else [_geometry(tiles, one, scale, notes) for tiles, one in zip(levels, hints)]
    encoders = [
        EncoderIdentity(name=tiles.encoder, dim=tiles.features.shape[1], input_px=tiles.tile_px)
        for tiles in levels
        if tiles.encoder is not None and tiles.tile_px is not None
    ]
    whole = len(encoders) == len(levels)
    return Provenance(
        source="+".join(sources),
        slide=_slide(slide_id, levels[-1]),
        l0_origin_px=None if scale is None else (round(origin[0] / scale), round(origin[1] / scale)),
        levels=tuple(geometry),
        encoders=tuple(encoders) if whole else (),
        notes=notes,
    )


def _plane(levels: Sequence[Tiles], notes: dict[str, Any]) -> float | None:
    """How many units of the coordinates make a pixel of the plane in which extents are recorded."""
    finest = levels[-1]
    if finest.placeless:
        notes[MADE_UP_CELLS] = "without coordinates; tiles are in the order of the file"
        return None
    if any(tiles.tile_px is None for tiles in levels):
        notes["geometry"] = "not recorded: the files do not say how many pixels wide a tile was encoded"
        return None
    if finest.unit == "px":
        return 1.0
    notes["plane"] = "pixels of the finest level as encoded; the slide's own pixel size is not in the files"
    assert finest.extent is not None
    assert finest.tile_px is not None
    return finest.extent / finest.tile_px


def _geometry(tiles: Tiles, hints: LevelHints, scale: float, notes: dict[str, Any]) -> Geometry:
    assert tiles.extent is not None
    assert tiles.tile_px is not None
    if tiles.unit == "um":
        mpp = tiles.extent / tiles.tile_px
    elif tiles.slide_mpp is not None:
        mpp = tiles.slide_mpp * tiles.extent / tiles.tile_px
    else:
        mpp = mpp_at(hints.magnification)
        notes["mpp"] = "nominal, from the magnification: the files do not hold it"
    return Geometry(
        magnification=hints.magnification,
        mpp=mpp,
        tile_px=tiles.tile_px,
        l0_extent_px=max(1, round(tiles.extent / scale)),
    )


def _slide(slide_id: str, tiles: Tiles) -> SlideIdentity | None:
    if tiles.slide_size_px is None:
        return None
    if tiles.slide_mpp is not None:
        mpp, how = tiles.slide_mpp, f"given to or by {tiles.tool}"
    elif tiles.slide_magnification is not None:
        mpp, how = mpp_at(tiles.slide_magnification), f"objective power as recorded by {tiles.tool}"
    else:
        return None
    width, height = tiles.slide_size_px
    return SlideIdentity(name=slide_id, l0_width_px=width, l0_height_px=height, mpp=mpp, mpp_origin=how)
