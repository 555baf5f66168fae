"""Reading by region gives every tile once, with the pixels a read of its own would give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.extract.regions import REGION_PX, _rectangles, blocks, read_block
from marble.slides.lattice import Pyramid
from marble.slides.slide import Box, Region, Slide
from tests.extract.making import lattice, spec_of


def cut_all(slide: Slide, pyramid: Pyramid, level: int, only: list[int] | None = None) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for block in blocks(slide, pyramid, level, None if only is None else np.array(only)):
        cut = read_block(
            slide, block, pyramid.tile_px, pyramid.tile_px, lambda tile: tile, allow_upsample=pyramid.upsampled
        )
        assert not set(found) & set(cut.tiles.tolist())
        found |= {int(tile): pixels.tobytes() for tile, pixels in zip(cut.tiles, cut.pixels, strict=True)}
    return found


@pytest.mark.parametrize("magnifications", [(5.0, 20.0), (10.0, 20.0), (1.25, 5.0, 20.0), (20.0,), (2.5, 10.0)])
def test_tiles_cut_from_a_region_equal_tiles_read_one_by_one(
    slide_path: Path, magnifications: tuple[float, ...]
) -> None:
    with Slide.open(slide_path) as slide:
        pyramid = lattice(slide, spec_of(*magnifications))
        for level in range(pyramid.depth):
            found = cut_all(slide, pyramid, level)
            assert sorted(found) == list(range(len(pyramid.cells[level])))
            for tile, box in enumerate(pyramid.boxes(level).tolist()):
                direct = slide.read(Box(*box), (64, 64)).pixels
                assert found[tile] == direct.tobytes(), (level, tile)


@pytest.mark.parametrize("mpp", [0.5, 0.46, 0.3, 0.2527])
@pytest.mark.parametrize("origin", [(0, 0), (3, 7)])
def test_a_tile_does_not_depend_on_which_others_are_read(slide_path: Path, mpp: float, origin: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    with Slide.open(slide_path, mpp=mpp) as slide:
        pyramid = lattice(slide, spec_of(5.0, 20.0, pyramid={"l0_origin_px": origin}))
        for level in range(2):
            whole = cut_all(slide, pyramid, level)
            some = sorted(rng.choice(len(whole), len(whole) // 3, replace=False).tolist())
            assert cut_all(slide, pyramid, level, some) == {tile: whole[tile] for tile in some}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31), st.floats(0.05, 1.0))
def test_rectangles_hold_every_cell_once_and_nothing_else(rows: int, columns: int, seed: int, share: float) -> None:
    filled = np.random.default_rng(seed).random((rows, columns)) <= share
    filled[0, 0] = True
    cells = np.argwhere(filled)
    found = _rectangles(cells)
    assert sorted(int(i) for part in found for i in part) == list(range(len(cells)))
    for part in found:
        low, high = cells[part].min(axis=0), cells[part].max(axis=0)
        assert len(part) == np.prod(high - low + 1)
        assert cells[part[0]].tolist() == low.tolist()


@pytest.mark.parametrize(("tile_px", "mpp"), [(64, 0.5), (256, 0.5), (64, 0.3)])
def test_no_read_is_large_and_none_crosses_a_family_it_does_not_hold(
    slide_path: Path, tile_px: int, mpp: float
) -> None:
    with Slide.open(slide_path, mpp=mpp) as slide:
        pyramid = lattice(slide, spec_of(1.25, 20.0, tile_px=tile_px))
        assert pyramid.ratios == (16,)
        for block in blocks(slide, pyramid, 1):
            assert max(block.out_px) <= REGION_PX
            assert len(block.tiles) <= (REGION_PX // tile_px) ** 2
            families = pyramid.cells[1][block.tiles] // 16
            if tile_px == 256:  # 16 x 256 px exceed one read: each is part of one family
                assert len(np.unique(families, axis=0)) == 1


def test_a_tile_that_lacks_one_pixel_is_named_and_not_given(slide_path: Path) -> None:
    class Holed(Slide):
        def read(self, l0_box: Box, out_px: tuple[int, int], *, allow_upsample: bool = False) -> Region:
            region = super().read(l0_box, out_px, allow_upsample=allow_upsample)
            missing = np.zeros(region.pixels.shape[:2], np.bool_)
            missing[0, 0] = True
            return Region(region.pixels, missing)

    with Slide.open(slide_path) as slide:
        pyramid = lattice(slide, spec_of(5.0, 20.0))
        block = blocks(slide, pyramid, 1)[0]
        slide.__class__ = Holed
        cut = read_block(slide, block, 64, 64, lambda tile: tile, allow_upsample=False)
        at_corner = [int(t) for t, place in zip(block.tiles, block.places, strict=True) if place.tolist() == [0, 0]]
        assert cut.missing.tolist() == at_corner
        assert sorted([*cut.tiles, *cut.missing]) == sorted(block.tiles)
