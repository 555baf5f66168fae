"""Which pixels are read together: all tiles of a block of the lattice in one read, then cut apart.

Scanners store JPEG blocks that do not line up with the lattice, so a read per tile decodes most blocks several times.
Blocks here are whole families: a block holds all children of the parents it covers, or an even part of one parent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marble.slides.lattice import Pyramid
from marble.slides.slide import Box, Slide

Tile = NDArray[np.uint8]  # (px, px, 3)
REGION_PX = 2048  # longest side of one read, in pixels of the plane it is decoded from
_WHOLE = 1e-6


@dataclass(frozen=True, eq=False)
class Block:
    """Tiles of one level that are read together.

    Args:
        tiles: (n,) their indices in the level, row-major.
        places: (n, 2) row and column of each within the picture, in tiles.
        l0_box: the picture's place on the slide.
        out_px: (width, height) of the picture.
    """

    tiles: NDArray[np.int64]
    places: NDArray[np.int64]
    l0_box: Box
    out_px: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Cut:
    """A block's tiles, cut from its picture; `tiles` are those of `Block.tiles` that lack no pixel."""

    tiles: NDArray[np.int64]  # (n,)
    pixels: NDArray[np.uint8]  # (n, px, px, 3), fitted to the encoder
    missing: NDArray[np.int64]  # (m,) tiles that lack pixels
    looks: NDArray[np.float32] | None = None  # (n, 3) sharpness, fold and pen, if they were asked for


def blocks(slide: Slide, pyramid: Pyramid, level: int, only: NDArray[np.int64] | None = None) -> list[Block]:
    """The reads that give a level's tiles (or `only` those), each tile in exactly one, row-major by block.

    Where every tile starts and ends on whole pixels of the file's planes, a block is read as the rectangles its tiles
    fill, so nothing is decoded in vain. Where the planes do not fit the lattice, the whole block is read, so that a
    tile's pixels never depend on which others are wanted.
    """
    index = np.arange(len(pyramid.cells[level])) if only is None else np.sort(only)
    cells = pyramid.cells[level][index].astype(np.int64)  # (n, 2)
    exact = _fits_planes(slide, pyramid, level)
    side = _block_side(slide, pyramid, level, whole=not exact)
    block_of = cells // side
    order = np.lexsort((block_of[:, 1], block_of[:, 0]))  # stable: row-major within a block too
    starts = np.flatnonzero(np.any(np.diff(block_of[order], axis=0, prepend=-1), axis=1))
    found = []
    for members in np.split(order, starts[1:]):
        if exact:
            for part in _rectangles(cells[members]):
                filled = cells[members[part]]
                shape = filled.max(axis=0) - filled[0] + 1
                found.append(_block(pyramid, level, index[members[part]], filled, filled[0], shape))
        else:
            first, shape = block_of[members[0]] * side, np.array((side, side))
            found.append(_block(pyramid, level, index[members], cells[members], first, shape))
    return found


def _block(
    pyramid: Pyramid,
    level: int,
    tiles: NDArray[np.int64],
    cells: NDArray[np.int64],
    first: NDArray[np.int64],
    shape: NDArray[np.int64],
) -> Block:
    extent = pyramid.l0_extents_px[level]
    (row, column), (rows, columns) = first.tolist(), shape.tolist()
    left, top = pyramid.l0_origin_px
    box = Box(left + column * extent, top + row * extent, columns * extent, rows * extent)
    return Block(tiles, cells - first, box, (columns * pyramid.tile_px, rows * pyramid.tile_px))


def _rectangles(cells: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Row-major cells (n, 2) as rectangles without holes: runs of neighbours, joined with equal runs above them."""
    breaks = np.flatnonzero((np.diff(cells[:, 0]) != 0) | (np.diff(cells[:, 1]) != 1)) + 1
    found: list[list[NDArray[np.int64]]] = []
    growing: dict[tuple[int, int], tuple[int, int]] = {}  # columns spanned -> (last row, which rectangle)
    for run in np.split(np.arange(len(cells)), breaks):
        row, span = int(cells[run[0], 0]), (int(cells[run[0], 1]), int(cells[run[-1], 1]))
        last_row, which = growing.get(span, (-2, -1))
        if last_row == row - 1:
            found[which].append(run)
        else:
            which = len(found)
            found.append([run])
        growing[span] = row, which
    return [np.concatenate(runs) for runs in found]


def read_block(
    slide: Slide,
    block: Block,
    tile_px: int,
    input_px: int,
    fit: Callable[[Tile], Tile],
    *,
    allow_upsample: bool,
    look: Callable[[Tile], tuple[float, float, float]] | None = None,
) -> Cut:
    """Read a block once, cut its tiles and `fit` each to `input_px`; one that lacks a pixel is named and not given.

    With `look`, each tile's looks are measured on its pixels as they were read.
    """
    region = slide.read(block.l0_box, block.out_px, allow_upsample=allow_upsample)
    parts = [
        np.s_[row * tile_px : (row + 1) * tile_px, column * tile_px : (column + 1) * tile_px]
        for row, column in block.places.tolist()
    ]
    holes = region.missing
    lacking = np.array([holes is not None and bool(holes[part].any()) for part in parts], np.bool_)
    whole = [part for part, lacks in zip(parts, lacking, strict=True) if not lacks]
    pixels = np.empty((len(whole), input_px, input_px, 3), np.uint8)
    for i, part in enumerate(whole):
        pixels[i] = fit(region.pixels[part])
    looks = None if look is None else np.array([look(region.pixels[part]) for part in whole], np.float32).reshape(-1, 3)
    return Cut(block.tiles[~lacking], pixels, block.tiles[lacking], looks)


def _fits_planes(slide: Slide, pyramid: Pyramid, level: int) -> bool:
    """Whether every tile starts and ends on whole pixels of the plane, so that any cut gives the same pixels."""
    zoom = pyramid.l0_extents_px[level] / pyramid.tile_px
    downsample = slide.plane_for(zoom).downsample
    shrink = zoom / downsample
    places = [value / downsample for value in (*pyramid.l0_origin_px, pyramid.l0_extents_px[level])]
    return all(abs(value - round(value)) < _WHOLE for value in (shrink, downsample, *places))


def _block_side(slide: Slide, pyramid: Pyramid, level: int, *, whole: bool) -> int:
    """Tiles along a block's side: as many families as fit into one read, or an even part of one.

    Blocks that are read `whole`, wanted or not, are not made larger than a family.
    """
    zoom = pyramid.l0_extents_px[level] / pyramid.tile_px
    source_px = pyramid.tile_px * max(1.0, zoom / slide.plane_for(zoom).downsample)
    room = max(1, int(REGION_PX / source_px))
    family = pyramid.ratios[level - 1] if level else 1
    if family <= room:
        return family if whole else family * (room // family)
    return max(side for side in range(1, room + 1) if family % side == 0)
