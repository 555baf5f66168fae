"""Parents against brute force; cells against the rule of a bag; pitch against the grid it came from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.errors import BagError
from marble.interchange.grids import Boxes, containing, distinct, integer_ratio, nearest_box, nest, pitch

GRIDS = st.integers(0, 2**32 - 1)


def brute_parent(point: np.ndarray, boxes: Boxes) -> int:
    inside = [
        (float(((point - (corner + boxes.extent / 2)) ** 2).sum()), i)
        for i, corner in enumerate(boxes.xy)
        if (corner <= point).all() and (point - corner < boxes.extent).all()
    ]
    return min(inside)[1] if inside else -1


def scattered(rng: np.random.Generator, count: int, extent: float, *, regular: bool) -> Boxes:
    if regular:
        return Boxes(np.unique(rng.integers(0, 6, (count, 2)), axis=0) * np.float64(extent), extent)
    return Boxes(np.unique(rng.integers(0, 4 * int(extent), (count, 2)), axis=0).astype(np.float64), extent)


@given(GRIDS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_containing_is_brute_force(seed: int, regular: bool) -> None:
    rng = np.random.default_rng(seed)
    boxes = scattered(rng, 20, float(rng.integers(8, 200)), regular=regular)
    points = rng.uniform(-10, 6 * boxes.extent, (50, 2)).round(int(rng.integers(0, 3)))
    assert containing(points, boxes).tolist() == [brute_parent(point, boxes) for point in points]


@given(GRIDS)
@settings(max_examples=20, deadline=None)
def test_nearest_box_is_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = scattered(rng, 15, 64.0, regular=False)
    points = rng.uniform(-500, 500, (20, 2))
    wanted = [int(((boxes.centres - point) ** 2).sum(axis=1).argmin()) for point in points]
    assert nearest_box(points, boxes).tolist() == wanted


@given(GRIDS, st.sampled_from(["drop", "nearest"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_nested_cells_keep_the_rule_and_every_tile_is_accounted_for(seed: int, policy: str, regular: bool) -> None:
    rng = np.random.default_rng(seed)
    ratio = int(rng.integers(1, 6))
    fine_extent = float(rng.integers(20, 60))
    coarse = scattered(rng, 12, fine_extent * ratio + float(rng.choice([0.0, 0.25])), regular=regular)
    anywhere = rng.integers(0, int(5 * coarse.extent), (60, 2))
    fine = Boxes(np.unique(np.r_[anywhere, coarse.xy], axis=0), fine_extent)  # at least one child each
    (top, bottom), _ = nest([coarse, fine], "drop" if policy == "drop" else "nearest")
    assert bottom.parent is not None
    assert bottom.ratio == ratio
    np.testing.assert_array_equal(bottom.cells // ratio, top.cells[bottom.parent])
    for level in (top, bottom):
        assert len(np.unique(level.cells, axis=0)) == len(level.cells) == len(level.rows)
        assert level.cells.tolist() == sorted(level.cells.tolist())
    assert bottom.exact + bottom.partial + bottom.orphans == len(fine)
    given_up = bottom.orphans if policy == "drop" else 0
    assert len(bottom.rows) + bottom.collided + given_up == len(fine)
    kept = Boxes(coarse.xy[top.rows], coarse.extent)
    brute = np.array([brute_parent(point, kept) for point in fine.centres])
    assert bottom.orphans == (brute < 0).sum()
    with_parent = brute[bottom.rows] >= 0
    np.testing.assert_array_equal(bottom.parent[with_parent], brute[bottom.rows][with_parent])
    corners = fine.xy[brute >= 0] - kept.xy[brute[brute >= 0]]
    inside = ((corners >= -1e-3 * fine_extent) & (corners + fine_extent <= kept.extent + 1e-3 * fine_extent)).all(1)
    assert bottom.exact == inside.sum()


def test_of_tiles_in_one_cell_the_most_central_stays() -> None:
    coarse = Boxes(np.array([[0.0, 0.0], [103.0, 0.0], [95.0, 0.0]]), 100.0)
    fine = Boxes(np.array([[0.0, 0.0], [6.0, 0.0], [50.0, 50.0]]), 50.0)
    (top, bottom), origin = nest([coarse, fine])
    assert origin == (0.0, 0.0)
    assert (top.rows.tolist(), top.collided) == ([0, 1], 1)  # 103 is 3 off its cell, 95 is 5 off
    assert (bottom.rows.tolist(), bottom.collided) == ([0, 2], 1)


def test_ratio_must_be_whole() -> None:
    assert integer_ratio(1014, 254) == 4
    for coarse, fine in [(1000, 400), (256, 512), (65 * 256, 256)]:
        with pytest.raises(BagError, match=f"{coarse:g} and {fine:g}"):
            integer_ratio(coarse, fine)


@given(GRIDS, st.integers(20, 700))
@settings(max_examples=30, deadline=None)
def test_pitch_of_a_grid(seed: int, side: int) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.permutation(100)[:60]
    xy = np.stack([cells % 10, cells // 10], 1) * np.float64(side) + rng.integers(0, 1000, 2)
    assert pitch(xy) == side


def test_pitch_of_contours_with_grids_of_their_own() -> None:
    grid = np.stack(np.meshgrid(np.arange(6), np.arange(6)), -1).reshape(-1, 2) * 512.0
    other = grid + np.array([100.0, 512 * 5])  # shares one row with the first, 100 px off
    assert pitch(np.r_[grid, other]) == 512


def test_pitch_of_a_sparse_grid_is_not_its_most_common_distance() -> None:
    assert pitch(np.array([[x, 0.0] for x in (0, 2048, 4096, 6144, 7168, 8192)])) == 1024


def test_pitch_that_cannot_be_known() -> None:
    assert pitch(np.array([[0.0, 0.0], [7.0, 3.0]])) is None
    assert pitch(np.array([[0.0, 0.0]])) is None
    rng = np.random.default_rng(0)
    assert pitch(rng.integers(0, 30, (200, 2)) ** 2 * np.float64(1.37)) is None


def test_distinct_keeps_the_first() -> None:
    assert distinct(np.array([[1.0, 2], [0, 0], [1, 2], [0, 0], [3, 3]])).tolist() == [0, 1, 4]


def test_a_heap_of_boxes_is_refused() -> None:
    boxes = Boxes(np.array([[float(x), float(y)] for x in range(10) for y in range(10)]), 1000.0)
    with pytest.raises(BagError, match="overlap in one place"):
        containing(np.array([[500.0, 500.0]]), boxes)
