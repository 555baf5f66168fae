"""Polygons: tracing and filling undo each other; GeoJSON of others is read or refused by feature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from marble.errors import SlideError
from marble.slides.outlines import Ring, fill, trace
from marble.slides.tissue import Tissue

from .conftest import Mask


@settings(max_examples=150, deadline=None)
@given(mask=arrays(np.bool_, st.tuples(st.integers(1, 14), st.integers(1, 14))))
def test_there_and_back(mask: Mask) -> None:
    polygons = trace(mask)
    np.testing.assert_array_equal(fill(polygons, mask.shape), mask)


def test_a_ring_with_an_island_in_its_hole() -> None:
    mask = np.zeros((9, 9), bool)
    mask[1:8, 1:8] = True
    mask[2:7, 2:7] = False
    mask[4, 4] = True
    polygons = trace(mask)
    assert [len(rings) for rings in polygons] == [2, 1]
    np.testing.assert_array_equal(polygons[0][0], [[1, 1], [8, 1], [8, 8], [1, 8]])
    np.testing.assert_array_equal(polygons[1][0], [[4, 4], [5, 4], [5, 5], [4, 5]])


def test_pixels_that_touch_at_a_corner_are_two_pieces() -> None:
    assert len(trace(np.array([[True, False], [False, True]]))) == 2
    assert len(trace(np.array([[False, True], [True, False]]))) == 2


def test_fill_against_brute_force() -> None:
    """A slanted polygon with a slanted hole, pixel centres one by one."""
    outer = np.array([(1.3, 2.1), (28.7, 4.4), (24.2, 27.9), (3.9, 19.6)])
    hole = np.array([(9.1, 9.2), (18.3, 10.7), (14.4, 18.8)])
    found = fill([[outer, hole]], (30, 31))

    def inside(ring: Ring, x: float, y: float) -> bool:
        odd = False
        for (x0, y0), (x1, y1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
            if (y0 > y) != (y1 > y) and x < x0 + (y - y0) / (y1 - y0) * (x1 - x0):
                odd = not odd
        return odd

    expected = [
        [inside(outer, x + 0.5, y + 0.5) and not inside(hole, x + 0.5, y + 0.5) for x in range(31)] for y in range(30)
    ]
    np.testing.assert_array_equal(found, expected)


def test_overlapping_polygons_add_up() -> None:
    square = np.array([(0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0)])
    assert fill([[square], [square + 2]], (8, 8)).sum() == 16 + 16 - 4


def _feature(geometry: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Feature", "geometry": geometry, "properties": {"classification": {"name": "Tissue"}}}


SQUARE = [[0, 0], [40, 0], [40, 40], [0, 40], [0, 0]]
HOLE = [[10, 10], [20, 10], [20, 20], [10, 20], [10, 10]]
FAR = [[60, 60], [80, 60], [80, 70], [60, 70], [60, 60]]


class TestGeoJson:
    def test_round_trip_through_a_file(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        mask = rng.random((37, 53)) < 0.55
        for l0_per_px in (16.0, 15.8713):
            tissue = Tissue(mask, l0_per_px)
            path = tmp_path / "tissue.geojson"
            path.write_text(json.dumps(tissue.to_geojson()))
            size = (int(53 * l0_per_px), int(37 * l0_per_px))
            again = Tissue.from_geojson(path, size, l0_per_px)
            np.testing.assert_array_equal(again.mask, mask)
            assert again.l0_per_px == l0_per_px

    @pytest.mark.parametrize(
        "document",
        [
            {
                "type": "FeatureCollection",
                "features": [_feature({"type": "Polygon", "coordinates": rings}) for rings in ([SQUARE, HOLE], [FAR])],
            },
            [_feature({"type": "MultiPolygon", "coordinates": [[SQUARE, HOLE], [FAR]]})],
            _feature({"type": "MultiPolygon", "coordinates": [[SQUARE, HOLE], [FAR]]}),
            {"type": "MultiPolygon", "coordinates": [[SQUARE, HOLE], [FAR]]},
        ],
    )
    def test_shapes_of_documents(self, document: Any) -> None:
        tissue = Tissue.from_geojson(document, (100, 90), 10.0)
        expected = np.zeros((9, 10), bool)
        expected[:4, :4] = True
        expected[1, 1] = False
        expected[6, 6:8] = True
        np.testing.assert_array_equal(tissue.mask, expected)

    @pytest.mark.parametrize(
        ("geometry", "reason"),
        [
            ({"type": "Point", "coordinates": [1, 2]}, "feature 2: a Point geometry"),
            ({"type": "LineString", "coordinates": SQUARE}, "feature 2: a LineString geometry"),
            ({"type": "Polygon", "coordinates": []}, "feature 2: a polygon without coordinates"),
            ({"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [0, 0]]]}, "at least four"),
            ({"type": "Polygon", "coordinates": [[*SQUARE[:-1], [float("nan"), 0]]]}, "finite"),
            ({"type": "Polygon", "coordinates": [SQUARE[:-1]]}, "does not end where it starts"),
            ({"type": "Polygon", "coordinates": [["a", "b", "c", "d"]]}, "at least four"),
            ({"type": "MultiPolygon", "coordinates": 7}, "without coordinates"),
            (None, "nameless geometry"),
        ],
    )
    def test_refusals_name_the_feature(self, geometry: Any, reason: str) -> None:
        features = [_feature({"type": "Polygon", "coordinates": [SQUARE]}), _feature(geometry)]
        with pytest.raises(SlideError, match=reason):
            Tissue.from_geojson(features, (100, 100), 10.0)

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(SlideError, match=r"absent\.geojson: no such file"):
            Tissue.from_geojson(tmp_path / "absent.geojson", (10, 10), 1.0)
        (tmp_path / "x.geojson").write_text("{")
        with pytest.raises(SlideError, match=r"x\.geojson: not valid JSON"):
            Tissue.from_geojson(tmp_path / "x.geojson", (10, 10), 1.0)
