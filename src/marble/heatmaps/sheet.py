"""A contact sheet: the tiles with the largest and the smallest values, each beside its parent with a box around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from marble.attribution.tile_map import TileMap
from marble.heatmaps.frame import INK, LINE, PAPER, SOFT, font

Pixels = NDArray[np.uint8]  # (h, w, 3)
Box = tuple[int, int, int, int]  # x, y, width, height in level-0 pixels
_MARK = (230, 80, 0)
_GAP, _TEXT = 14, 14


class Crop(Protocol):
    """Cuts a box of level-0 pixels from the slide, as a square picture of a given side."""

    def __call__(self, l0_box: Box, px: int) -> Pixels: ...


@dataclass(frozen=True)
class SheetTile:
    """One tile of the sheet."""

    rank: int
    value: float
    box: Box
    parent: Box | None


def pick(fine: TileMap, coarse: TileMap | None, count: int) -> tuple[list[SheetTile], list[SheetTile]]:
    """The `count` tiles with the largest values, then those with the smallest (largest of these last)."""
    order = np.argsort(-fine.values, kind="stable")
    count = min(count, len(order))

    def entry(place: int) -> SheetTile:
        tile = int(order[place])
        parent = None
        if coarse is not None and fine.parent is not None:
            parent = _box(coarse, int(fine.parent[tile]))
        return SheetTile(place + 1, float(fine.values[tile]), _box(fine, tile), parent)

    return [entry(i) for i in range(count)], [entry(len(order) - 1 - i) for i in range(count)]


def contact_sheet(
    crop: Crop, fine: TileMap, coarse: TileMap | None, title: str, *, count: int = 8, px: int = 176, columns: int = 4
) -> Pixels:
    """(h, w, 3) top and bottom tiles at both magnifications."""
    top, bottom = pick(fine, coarse, count)
    card = (px if coarse is None else 2 * px + 6, px + 2 * _TEXT)
    rows = -(-len(top) // columns)
    band = 3 * _TEXT + rows * (card[1] + _GAP)
    width = 2 * _GAP + columns * card[0] + (columns - 1) * _GAP
    sheet = Image.new("RGB", (width, 3 * _TEXT + 2 * band + 2 * _GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_GAP, _GAP), title, INK, font(18, bold=True))
    for number, (name, entries) in enumerate((("largest", top), ("smallest", bottom))):
        y = 3 * _TEXT + _GAP + number * band
        draw.text((_GAP, y + 6), f"{name} {fine.name}{_scales(fine, coarse)}", SOFT, font(_TEXT))
        _cards(sheet, draw, crop, entries, (_GAP, y + int(2.2 * _TEXT)), card, px, columns)
    return np.asarray(sheet)


def _cards(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, crop: Crop, entries: Sequence[SheetTile], corner: tuple[int, int],
    card: tuple[int, int], px: int, columns: int,
) -> None:  # fmt: skip
    for i, entry in enumerate(entries):
        x = corner[0] + i % columns * (card[0] + _GAP)
        y = corner[1] + i // columns * (card[1] + _GAP)
        at = x
        if entry.parent is not None:
            sheet.paste(Image.fromarray(crop(entry.parent, px)), (x, y))
            draw.rectangle((x - 1, y - 1, x + px, y + px), outline=LINE)
            draw.rectangle(_within(entry, (x, y), px), outline=_MARK, width=3)
            at = x + px + 6
        sheet.paste(Image.fromarray(crop(entry.box, px)), (at, y))
        draw.rectangle((at - 1, y - 1, at + px, y + px), outline=_MARK if entry.parent else LINE, width=2)
        draw.text((x, y + px + 4), f"#{entry.rank}", INK, font(_TEXT, bold=True))
        draw.text((at, y + px + 4), f"{entry.value:.3g}", INK, font(_TEXT))


def _within(entry: SheetTile, corner: tuple[int, int], px: int) -> tuple[float, float, float, float]:
    """The tile's rectangle in its parent's picture."""
    assert entry.parent is not None
    scale = px / entry.parent[2]
    x, y = (corner[i] + (entry.box[i] - entry.parent[i]) * scale for i in (0, 1))
    return x, y, x + entry.box[2] * scale, y + entry.box[3] * scale


def _scales(fine: TileMap, coarse: TileMap | None) -> str:
    if fine.magnification is None:
        return ""
    if coarse is None or coarse.magnification is None:
        return f", at {fine.magnification:g}x"
    return f": the tile at {fine.magnification:g}x, right of its parent at {coarse.magnification:g}x"


def _box(tiles: TileMap, index: int) -> Box:
    x, y, width, height = tiles.l0_boxes[index].tolist()
    return x, y, width, height
