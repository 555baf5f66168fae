"""Pictures, sheets and GeoJSON: every tile at its place, every value in its colour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from marble.attribution.tile_map import Placement, TileMap
from marble.errors import InputError, NonFiniteError
from marble.heatmaps.colours import DIVERGING, SEQUENTIAL, colour_table, coloured
from marble.heatmaps.frame import length_text, scale_length, telling_apart
from marble.heatmaps.geojson import tiles_geojson, write_geojson
from marble.heatmaps.overlay import Words, blank, blend, draw_heatmap, write_png
from marble.heatmaps.sheet import contact_sheet, pick

Pixels = NDArray[np.uint8]


def make_map(
    rows: int = 3, columns: int = 4, extent: int = 100, origin: tuple[int, int] = (0, 0), signed: bool = False
) -> TileMap:
    cells = np.argwhere(np.ones((rows, columns))).astype(np.int32)
    corner = cells[:, ::-1].astype(np.int64) * extent + np.array(origin)
    values = np.linspace(-1 if signed else 0, 1, len(cells))
    return TileMap("attention", 1, 10.0, cells, np.concatenate((corner, np.full_like(corner, extent)), axis=1),
                   np.zeros(len(cells), np.int64), values, signed=signed)  # fmt: skip


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 900), st.integers(1, 300), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_neighbours_touch_and_nothing_leaves_the_picture(w: int, h: int, out: int, extent: int, origin: int) -> None:
    boxes = make_map(3, 4, extent, (origin, origin)).l0_boxes
    edges = Placement((w, h), (out, max(1, out * h // w))).edges(boxes)
    assert edges.min() >= 0
    assert edges[:, [0, 2]].max() <= out
    grid = edges.reshape(3, 4, 4)
    assert (grid[:, :-1, 2] == grid[:, 1:, 0]).all()
    assert (grid[:-1, :, 3] == grid[1:, :, 1]).all()


def test_each_tile_is_one_flat_colour_at_its_rectangle() -> None:
    tiles = make_map(2, 3, 100, (50, 20))
    picture = blank((500, 300), 250)  # half size
    out = blend(picture, (500, 300), tiles, opacity=1.0)
    weights = tiles.weights()
    expected = picture.astype(float)
    for (row, column), value, weight in zip(tiles.cells.tolist(), tiles.values, weights, strict=True):
        here = np.s_[10 + 50 * row : 60 + 50 * row, 25 + 50 * column : 75 + 50 * column]
        expected[here] = (1 - weight) * 246 + weight * colour_table("viridis")[round(255 * value)]
    assert np.abs(out - np.rint(expected)).max() <= 1
    assert (out[60:110, 125:175] == colour_table("viridis")[-1]).all()  # the largest, in full colour


def test_opacity_and_colours_are_checked() -> None:
    with pytest.raises(InputError, match="opacity"):
        blend(blank((10, 10), 10), (10, 10), make_map(), opacity=1.2)
    with pytest.raises(InputError, match="colour map"):
        colour_table("jet")


def test_scales_run_from_zero_or_around_it_or_are_stretched() -> None:
    assert make_map().limits == (0.0, 1.0)
    assert make_map(signed=True).limits == (-1.0, 1.0)
    signed = make_map(signed=True)
    assert signed.scaled()[0] == 0
    assert signed.weights()[0] == signed.weights()[-1] == 1
    close = TileMap("a", 0, None, signed.cells, signed.l0_boxes, None, np.linspace(0.9, 1, 12), stretched=True)
    assert close.limits == (0.9, 1.0)
    flat = TileMap("a", 0, None, signed.cells, signed.l0_boxes, None, np.full(12, 0.5), stretched=True)
    assert flat.limits == (0.0, 0.5)
    zero = TileMap("a", 0, None, signed.cells, signed.l0_boxes, None, np.zeros(12))
    assert np.isfinite(zero.scaled()).all()


def test_a_map_must_fit_its_tiles_and_be_finite() -> None:
    good = make_map()
    with pytest.raises(InputError, match="2 values for 12 boxes"):
        TileMap("a", 0, None, good.cells, good.l0_boxes, None, np.zeros(2))
    with pytest.raises(NonFiniteError):
        TileMap("a", 0, None, good.cells, good.l0_boxes, None, np.full(12, np.nan))


def test_colour_tables_are_whole() -> None:
    for name in (*SEQUENTIAL, *DIVERGING):
        assert colour_table(name).shape == (256, 3)
    assert (coloured(np.array([-1.0, 0.0, 1.0, 2.0]), "viridis")[[0, 3]] == colour_table("viridis")[[0, -1]]).all()


def test_the_frame_leaves_the_picture_untouched_and_the_scale_bar_is_right() -> None:
    tiles, size = make_map(), (400, 300)
    framed = draw_heatmap(blank(size, 400), size, tiles, Words("slide", ("a", "b")), mpp=0.5)
    x, y, width, height = framed.inner
    assert (framed.pixels[y : y + height, x : x + width] == blend(blank(size, 400), size, tiles)).all()
    below = framed.pixels[y + height + 2 :, x:].astype(int)
    bar = (below == (28, 31, 36)).all(axis=2).sum(axis=1).max()
    assert bar == 100  # 50 um at 0.5 um per pixel, the largest round length of at most a quarter of 200 um


@given(st.floats(0.5, 1e6))
def test_scale_lengths_are_round_and_fit(width_um: float) -> None:
    length = scale_length(width_um)
    assert width_um / 10.0001 <= length <= width_um / 3.9999
    mantissa = length / 10 ** np.floor(np.log10(length * 1.0000001))
    assert min(abs(mantissa - step) for step in (1, 2, 5)) < 1e-6
    assert length_text(2000) == "2 mm"
    assert length_text(50) == "50 µm"


def test_geojson_holds_every_tile_with_value_and_rank(tmp_path: Path) -> None:
    tiles = make_map(2, 2, 64, (7, 9))
    document = json.loads(write_geojson(tmp_path / "a.geojson", tiles).read_text())
    assert document == tiles_geojson(tiles)
    assert len(document["features"]) == 4
    first = document["features"][0]
    assert first["geometry"]["coordinates"] == [[[7, 9], [71, 9], [71, 73], [7, 73], [7, 9]]]
    assert first["properties"]["objectType"] == "tile"
    ranks = [feature["properties"]["measurements"]["rank"] for feature in document["features"]]
    assert ranks == [4, 3, 2, 1]
    assert [f["properties"]["measurements"]["attention"] for f in document["features"]] == tiles.values.tolist()


def test_the_sheet_shows_the_right_tiles_beside_their_parents() -> None:
    fine, coarse = make_map(4, 4, 50), make_map(1, 1, 200)
    top, bottom = pick(fine, coarse, 3)
    assert [entry.value for entry in top] == sorted(fine.values.tolist(), reverse=True)[:3]
    assert [entry.value for entry in bottom] == sorted(fine.values.tolist())[:3]
    assert top[0].box == (150, 150, 50, 50)
    assert top[0].parent == (0, 0, 200, 200)
    asked: list[tuple[tuple[int, int, int, int], int]] = []

    def crop(l0_box: tuple[int, int, int, int], px: int) -> Pixels:
        asked.append((l0_box, px))
        return np.full((px, px, 3), 200, np.uint8)

    sheet = contact_sheet(crop, fine, coarse, "slide", count=3, px=80)
    assert [box for box, _ in asked[:2]] == [(0, 0, 200, 200), (150, 150, 50, 50)]
    assert len(asked) == 12
    marked = (sheet == (230, 80, 0)).all(axis=2)
    assert marked.any()
    assert contact_sheet(crop, fine, None, "slide", count=99).ndim == 3


def test_pictures_are_published(tmp_path: Path) -> None:
    path = write_png(tmp_path / "deep" / "a.png", blank((30, 20), 30))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in path.parent.iterdir()] == ["a.png"]


def test_the_ends_of_a_colour_bar_differ_in_words_where_they_differ() -> None:
    assert telling_apart((0.0171, 0.00857, 0.0)) == ["0.017", "0.0086", "0"]
    assert telling_apart((0.01678, 0.01640, 0.01602)) == ["0.0168", "0.0164", "0.016"]
    assert telling_apart((1.0, 1.0, 1.0)) == ["1", "1", "1"]
    assert telling_apart((1.0 + 1e-12, 1.0 + 5e-13, 1.0)) == ["1", "1", "1"]
