"""The lattice: nested for every slide there can be, and the right pixels in the right cell."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.bags import Bag, Level
from marble.bags.augment import keep_branches
from marble.errors import SlideError, SpecError
from marble.slides.lattice import LevelCounts, NoTissueError, Pyramid, PyramidSpec, lay
from marble.slides.slide import Box, Slide
from marble.slides.tissue import Tissue

from .conftest import Pixels, box_mean, write_tiff

LATTICES = 10_000
Ints = npt.NDArray[np.int64]


def _random_case(rng: np.random.Generator) -> tuple[tuple[int, int], float, Tissue, PyramidSpec]:
    """Odd sizes, odd pixel sizes, masks of odd scales, one to four levels."""
    depth = int(rng.integers(1, 5))
    ratios = rng.choice([2, 2, 3, 4, 8], depth - 1)
    finest = float(rng.choice([0.25, 0.5, 1.0, 0.4]))
    mpps = [finest]
    for ratio in ratios:
        mpps.insert(0, mpps[0] * int(ratio))
    mpp = finest / float(rng.choice([1.0, 4.0003, 2.0, 1.13, 0.9, 1.9997, 16.004]))
    tile_px = int(rng.choice([16, 31, 64, 256]))
    extent = tile_px * max(1.0, finest / mpp)
    cells = rng.integers(1, 24, 2)
    width, height = (int(n * extent + rng.integers(0, int(extent))) for n in cells)
    l0_per_px = float(rng.choice([1.0, 0.25, 0.333, 0.1426])) * extent
    shape = int(np.ceil(height / l0_per_px)), int(np.ceil(width / l0_per_px))
    mask = rng.random(shape) < rng.uniform(0.3, 1.0)
    spec = PyramidSpec(
        mpps=tuple(mpps),
        tile_px=tile_px,
        coverage=tuple(float(c) for c in rng.uniform(0, 0.5, depth)) if rng.random() < 0.7 else (),
        keep_childless=bool(rng.random() < 0.5),
        l0_origin_px=(int(rng.integers(0, 20)), int(rng.integers(0, 20))) if rng.random() < 0.3 else (0, 0),
    )
    return (width, height), mpp, Tissue(mask, l0_per_px), spec


def _contains(outer: Ints, inner: Ints) -> npt.NDArray[np.bool_]:
    """(n_inner, n_outer) whether a box of `outer` holds a box of `inner`, by plain pixel geometry."""
    o, i = outer[None], inner[:, None]
    return np.asarray(
        (i[..., 0] >= o[..., 0])
        & (i[..., 1] >= o[..., 1])
        & (i[..., 0] + i[..., 2] <= o[..., 0] + o[..., 2])
        & (i[..., 1] + i[..., 3] <= o[..., 1] + o[..., 3])
    )


def _bag(pyramid: Pyramid) -> Bag:
    levels = []
    for k in range(pyramid.depth):
        number = np.arange(len(pyramid.cells[k]), dtype=np.float32)[:, None]
        ratio = pyramid.ratios[k - 1] if k else None
        levels.append(
            Level(torch.from_numpy(number), torch.from_numpy(pyramid.cells[k]), _tensor(pyramid.parents[k]), ratio)
        )
    return Bag("case", levels)


def _tensor(parents: Ints | None) -> torch.Tensor | None:
    return None if parents is None else torch.from_numpy(parents)


def test_ten_thousand_lattices_nest(record_property: Callable[[str, object], None]) -> None:
    record_property("cases", LATTICES)
    rng = np.random.default_rng(20)
    laid = depths = dropped = 0
    while laid < LATTICES:
        size, mpp, tissue, spec = _random_case(rng)
        try:
            pyramid = lay(size, mpp, tissue, spec)
        except SlideError:  # no tile with enough tissue, or a picture smaller than a tile: no lattice to look at
            continue
        laid += 1
        depths += pyramid.depth
        boxes = [pyramid.boxes(k) for k in range(pyramid.depth)]
        for k, cells in enumerate(pyramid.cells):
            keys = cells[:, 0].astype(np.int64) * 2**31 + cells[:, 1]
            assert (np.diff(keys) > 0).all()  # sorted row-major, none twice
            assert cells.dtype == np.int32
            if k:
                inside = _contains(boxes[k - 1], boxes[k])
                assert (inside.sum(axis=1) == 1).all()  # exactly one parent
                parents = pyramid.parents[k]
                assert parents is not None
                np.testing.assert_array_equal(inside.argmax(axis=1), parents)
                np.testing.assert_array_equal(pyramid.cells[k - 1][parents], cells // pyramid.ratios[k - 1])
                assert pyramid.l0_extents_px[k - 1] == pyramid.l0_extents_px[k] * pyramid.ratios[k - 1]
        assert (boxes[-1][:, :2] + boxes[-1][:, 2:] <= size).all()  # finest tiles lie inside the picture
        if pyramid.depth > 1:
            dropped += _check_drop(pyramid, boxes, rng)
    assert depths > 2 * laid
    assert dropped > 0.3 * laid


def _check_drop(pyramid: Pyramid, boxes: list[Ints], rng: np.random.Generator) -> bool:
    """Dropping tiles of one level removes all and only the tiles that lie inside them."""
    level = int(rng.integers(0, pyramid.depth - 1))
    keep = rng.random(len(boxes[level])) < 0.6
    survives = [~_contains(boxes[level][~keep], boxes[k]).any(axis=1) for k in range(level, pyramid.depth)]
    if not all(kept.any() for kept in survives):
        return False
    bag = keep_branches(_bag(pyramid), torch.from_numpy(keep), level)
    for kept, after in zip(survives, bag.levels[level:], strict=True):
        np.testing.assert_array_equal(after.features[:, 0].numpy(), np.nonzero(kept)[0])
    return True


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_against_brute_force(seed: int) -> None:
    """Every rule written out cell by cell."""
    rng = np.random.default_rng(seed)
    size, mpp, tissue, spec = _random_case(rng)
    asked = spec.asked_mpps[-1]
    extent = spec.tile_px if abs(mpp / asked - 1) <= 0.15 else round(spec.tile_px * asked / mpp)
    scales = [1]
    for ratio in reversed(spec.ratios):
        scales.insert(0, scales[0] * ratio)
    (left, top), (width, height) = spec.l0_origin_px, size
    rows, columns = (height - top) // extent, (width - left) // extent
    kept: list[set[tuple[int, int]]] = []
    for k, scale in enumerate(scales):
        side = extent * scale
        here = set()
        places = [(row, column) for row in range(-(-rows // scale)) for column in range(-(-columns // scale))]
        covered = tissue.coverage([(left + column * side, top + row * side, side, side) for row, column in places])
        for (row, column), fraction in zip(places, covered, strict=True):
            orphan = k > 0 and (row // spec.ratios[k - 1], column // spec.ratios[k - 1]) not in kept[k - 1]
            if fraction >= spec.thresholds[k] - 1e-9 and not orphan:
                here.add((row, column))
        kept.append(here)
    for k in range(len(scales) - 2, -1, -1):
        side = extent * scales[k]
        with_children = {(row // spec.ratios[k], column // spec.ratios[k]) for row, column in kept[k + 1]}
        for row, column in kept[k] - with_children:
            overhangs = left + (column + 1) * side > width or top + (row + 1) * side > height
            if overhangs or not spec.keep_childless:
                kept[k].discard((row, column))
    if not kept[-1]:
        with pytest.raises(SlideError):
            lay(size, mpp, tissue, spec)
        return
    pyramid = lay(size, mpp, tissue, spec)
    for k, cells in enumerate(pyramid.cells):
        assert [tuple(cell) for cell in cells.tolist()] == sorted(kept[k])
        assert pyramid.mpps[k] == pytest.approx(mpp * extent * scales[k] / spec.tile_px)


def test_counts() -> None:
    """A picture of 5 x 4 finest tiles in coarse tiles of 2 x 2; the mask is given by hand."""
    mask = np.zeros((4, 5), bool)
    mask[0, 0] = True  # one of four: its parent is covered by 0.25
    mask[0:2, 2:4] = True  # a full coarse tile
    mask[0, 4] = True  # in the overhanging coarse column, covered by 0.25
    spec = PyramidSpec(mpps=(2.0, 1.0), tile_px=16, coverage=(0.3, 0.5))
    pyramid = lay((16 * 5, 16 * 4), 1.0, Tissue(mask, 16.0), spec)
    assert pyramid.cells[0].tolist() == [[0, 1]]
    assert pyramid.cells[1].tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
    assert pyramid.counts[0] == LevelCounts(6, 1, 0, 0, 0, 0, 1)
    assert pyramid.counts[1] == LevelCounts(20, 6, 2, 0, 0, 0, 4)
    loose = lay(
        (16 * 5, 16 * 4), 1.0, Tissue(mask, 16.0), PyramidSpec(mpps=(2.0, 1.0), tile_px=16, coverage=(0.0, 0.5))
    )
    # Level 0: all six places; two overhang, of which one has a child. Of the other three, two are empty but inside.
    assert loose.counts[0] == LevelCounts(6, 6, 0, 2, 1, 1, 5)
    assert loose.record()[1]["kept"] == 6


class TestPixelSizes:
    TISSUE = Tissue(np.ones((40, 40), bool), 256.0)

    @pytest.mark.parametrize(
        ("mpp", "asked", "extent", "actual"),
        [
            (0.2498, 0.25, 256, 0.2498),
            (0.25, 0.25, 256, 0.25),
            (0.2527, 0.25, 256, 0.2527),
            (0.46, 0.5, 256, 0.46),
            (0.575, 0.5, 256, 0.575),  # 15 % exactly
            (0.425, 0.5, 256, 0.425),
            (1.053, 1.0, 256, 1.053),
            (0.2498, 1.0, 1025, 0.2498 * 1025 / 256),
            (0.46, 1.0, 557, 0.46 * 557 / 256),
            (0.4249, 0.5, 301, 0.4249 * 301 / 256),
        ],
    )
    def test_extent_and_actual_pixel_size(self, mpp: float, asked: float, extent: int, actual: float) -> None:
        pyramid = lay((9000, 9000), mpp, self.TISSUE, PyramidSpec(mpps=(asked * 4, asked)))
        assert pyramid.l0_extents_px == (4 * extent, extent)
        assert pyramid.mpps == pytest.approx((4 * actual, actual))
        assert not pyramid.upsampled

    def test_a_magnification_the_scan_does_not_have(self) -> None:
        spec = PyramidSpec(magnifications=(10, 40))
        with pytest.raises(
            SlideError, match=r"case-1\.svs: 40x \(0\.25 um/px\) asked, but the scan has 0\.5 um/px, about 20x"
        ):
            lay((9000, 9000), 0.5, self.TISSUE, spec, name="case-1.svs")
        allowed = lay((9000, 9000), 0.5, self.TISSUE, spec.model_copy(update={"allow_upsample": True}))
        assert allowed.upsampled
        assert allowed.l0_extents_px == (512, 128)
        assert allowed.mpps == (1.0, 0.25)
        assert allowed.magnifications == (10, 40)

    def test_small_and_empty_slides(self) -> None:
        with pytest.raises(SlideError, match=r"a\.svs: 200 x 300 pixels are smaller than one tile of 256"):
            lay((200, 300), 1.0, self.TISSUE, PyramidSpec(magnifications=(10,)), name="a.svs")
        empty = Tissue(np.zeros((4, 4), bool), 256.0)
        with pytest.raises(NoTissueError, match="no tile has enough tissue"):
            lay((1024, 1024), 1.0, empty, PyramidSpec(magnifications=(10,)))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "not both"),
        ({"magnifications": (10,), "mpps": (1.0,)}, "not both"),
        ({"magnifications": (10, 25)}, r"10x \(1 um/px\) and 25x \(0.4 um/px\) do not nest: 2.5"),
        ({"magnifications": (40, 10)}, "coarsest first"),
        ({"magnifications": (10, 10)}, "do not nest"),
        ({"magnifications": (10, -5)}, "positive"),
        ({"magnifications": (2.5, 10), "coverage": (0.5,)}, "1 coverage thresholds for 2 levels"),
        ({"magnifications": (10,), "coverage": (1.5,)}, "0 to 1"),
        ({"magnifications": (10,), "l0_origin_px": (-1, 0)}, "inside the slide"),
        ({"magnifications": (10,), "tile": 5}, "unknown key 'tile'"),
    ],
)
def test_specs_that_make_no_sense(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        PyramidSpec.parse(values)


def _digest(pixels: Pixels) -> str:
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()


@pytest.mark.parametrize("mpp", [0.2498, 0.25, 0.2527, 0.5, 0.46])
@pytest.mark.parametrize("origin", [(0, 0), (131, 77)])
def test_a_planted_mark_is_in_its_cell_at_every_level(
    tmp_path: Path, noise: Callable[..., Pixels], mpp: float, origin: tuple[int, int]
) -> None:
    """Three levels; the mark fills one finest tile; only its own tile, parent and grandparent see it."""
    plain = noise(2300, 1900, seed=3)
    marked = plain.copy()
    row, column, extent = 5, 6, 256
    x, y = origin[0] + column * extent, origin[1] + row * extent
    mark = noise(extent, extent, seed=99)
    marked[y : y + extent, x : x + extent] = mark
    paths = []
    for name, pixels in (("plain", plain), ("marked", marked)):
        planes = [pixels, box_mean(pixels, 4)]
        paths.append(write_tiff(tmp_path / f"{name}.tiff", planes, mpp=mpp))
    asked = 0.25 if mpp < 0.3 else 0.5
    spec = PyramidSpec(mpps=(asked * 8, asked * 4, asked), coverage=(0, 0, 0), l0_origin_px=origin)
    with Slide.open(paths[0]) as before, Slide.open(paths[1]) as after:
        tissue = Tissue(np.ones((10, 10), bool), 256.0)
        pyramid = lay(after.l0_size_px, after.mpp, tissue, spec, name=after.name)
        assert pyramid.mpps[-1] == pytest.approx(mpp)
        for k, scale in enumerate((8, 4, 1)):
            seen = []
            for cell, box in zip(pyramid.cells[k].tolist(), pyramid.boxes(k).tolist(), strict=True):
                one, other = (slide.read(Box(*box), (256, 256)).pixels for slide in (before, after))
                if _digest(one) != _digest(other):
                    seen.append(cell)
            assert seen == [[row // scale, column // scale]], k
        finest = after.read(Box(x, y, extent, extent), (256, 256))
        assert _digest(finest.pixels) == _digest(mark)
        if origin == (0, 0):  # the middle level is the file's second plane as it is
            px, py = column // 4 * 256, row // 4 * 256
            direct = tifffile.imread(paths[1], key=1)[py : py + 256, px : px + 256]
            coarse = after.read(Box(px * 4, py * 4, 1024, 1024), (256, 256))
            assert _digest(coarse.pixels[: direct.shape[0], : direct.shape[1]]) == _digest(direct)


def test_tissue_beyond_the_last_whole_tile_is_measured_or_kept() -> None:
    """A slide of 1000 x 700 pixels full of tissue, tiles of 256: 3 x 2 whole ones; padded, 4 x 3."""
    tissue = Tissue(np.ones((700, 1000), np.bool_), 1.0)
    dropped = lay((1000, 700), 1.0, tissue, PyramidSpec(magnifications=(2.5, 10)))
    assert len(dropped.cells[-1]) == 6
    assert dropped.tissue_in_tiles == pytest.approx(768 * 512 / 700_000)
    assert dropped.tissue_beyond == pytest.approx(1 - 768 * 512 / 700_000)
    padded = lay((1000, 700), 1.0, tissue, PyramidSpec(magnifications=(2.5, 10), edge="pad"))
    assert len(padded.cells[-1]) == 12
    assert padded.tissue_in_tiles == pytest.approx(1.0)
    assert padded.counts[-1].overhanging == 6
    assert padded.tissue_beyond == dropped.tissue_beyond
    parent = padded.parents[1]
    assert parent is not None
    np.testing.assert_array_equal(padded.cells[0][parent], padded.cells[1] // 4)
    small = lay(
        (100, 300), 1.0, Tissue(np.ones((300, 100), np.bool_), 1.0), PyramidSpec(magnifications=(10,), edge="pad")
    )
    assert len(small.cells[0]) == 1  # of the second, 44 of 256 rows are tissue: less than a quarter
