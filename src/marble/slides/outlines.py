"""Masks as polygons and back, along pixel edges, so that the way there and back changes nothing.

A ring is (n, 2) of (x, y) in mask pixels, not closed. Tracing treats pixels that touch only at a corner as separate;
filling takes a pixel if its centre lies inside (even-odd).
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from marble.errors import SlideError
from marble.slides.readers.planes import Mask

Ring = npt.NDArray[np.float64]  # (n, 2) of x, y
Polygon = list[Ring]  # the outline, then its holes

# Walking with tissue on the right: east along a pixel's top edge, then south, west, north.
_STEP = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])


def trace(mask: Mask) -> list[Polygon]:
    """The outline and holes of every 4-connected component, in reading order."""
    height, width = mask.shape
    padded = np.pad(mask, 1)
    inner = padded[1:-1, 1:-1]
    open_sides = (padded[:-2, 1:-1], padded[1:-1, 2:], padded[2:, 1:-1], padded[1:-1, :-2])  # above, right, below, left
    first_corner = ((0, 0), (1, 0), (1, 1), (0, 1))  # where the edge on that side starts, relative to its pixel
    stride = width + 1  # vertices in a row
    edge_at = np.full((4, (height + 1) * stride), -1, np.int64)  # edge number by direction and start vertex
    starts, directions, owners = [], [], []
    _, labels = cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)
    for direction, (neighbour, (dx, dy)) in enumerate(zip(open_sides, first_corner, strict=True)):
        rows, columns = np.nonzero(inner & ~neighbour)
        starts.append((rows + dy) * stride + columns + dx)
        directions.append(np.full(len(rows), direction))
        owners.append(labels[rows, columns])
    start, direction_of, owner = np.concatenate(starts), np.concatenate(directions), np.concatenate(owners)
    edge_at[direction_of, start] = np.arange(len(start))
    end = start + _STEP[direction_of, 0] + _STEP[direction_of, 1] * stride
    # Where two pixels meet at a corner there are two ways on; the right turn stays with the same pixel.
    turns = [edge_at[(direction_of + turn) % 4, end] for turn in (1, 0, 3)]
    following = np.where(turns[0] >= 0, turns[0], np.where(turns[1] >= 0, turns[1], turns[2])).tolist()
    outlines: dict[int, Ring] = {}
    holes: dict[int, list[Ring]] = {}
    visited = np.zeros(len(start), np.bool_)
    for first in np.argsort(start, kind="stable").tolist():
        if visited[first]:
            continue
        edges: list[int] = []
        edge = first
        while not edges or edge != first:
            edges.append(edge)
            edge = following[edge]
        visited[edges] = True
        ring = _corners(start[edges], direction_of[edges], stride)
        if _area(ring) > 0:
            outlines[int(owner[first])] = ring
        else:
            holes.setdefault(int(owner[first]), []).append(ring)
    return [[ring, *holes.get(label, [])] for label, ring in outlines.items()]


def fill(polygons: list[Polygon], shape: tuple[int, int]) -> Mask:
    """(h, w) true where a pixel's centre lies inside any polygon."""
    mask = np.zeros(shape, np.bool_)
    for rings in polygons:
        mask |= _parity(rings, shape)
    return mask


def to_geojson(polygons: list[Polygon], scale: float) -> dict[str, Any]:
    """A FeatureCollection in level-0 pixels as QuPath reads it: one annotation of class Tissue for each polygon."""
    return {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": [_closed(ring * scale) for ring in rings]},
                "properties": {"objectType": "annotation", "classification": {"name": "Tissue", "color": [0, 160, 0]}},
            }
            for rings in polygons
        ],
    }


def from_geojson(document: Any, scale: float, where: object) -> list[Polygon]:
    """The polygons of a FeatureCollection, a list of features, one feature or one geometry, in mask pixels."""
    if isinstance(document, dict) and document.get("type") == "FeatureCollection":
        document = document.get("features")
    features = document if isinstance(document, list) else [document]
    polygons: list[Polygon] = []
    for number, feature in enumerate(features, start=1):
        here = f"{where}, feature {number}"
        geometry = feature.get("geometry", feature) if isinstance(feature, dict) else None
        kind = geometry.get("type") if isinstance(geometry, dict) else None
        if not isinstance(geometry, dict) or kind not in ("Polygon", "MultiPolygon"):
            raise SlideError(
                f"a {kind or 'nameless'} geometry; tissue is outlined by Polygon and MultiPolygon",
                where=here,
                hint="Delete it in QuPath, or draw it as an area",
            )
        parts = geometry.get("coordinates")
        for rings in [parts] if kind == "Polygon" else parts if isinstance(parts, list) else [None]:
            if not isinstance(rings, list) or not rings:
                raise SlideError("a polygon without coordinates", where=here)
            polygons.append([_ring(ring, here) / scale for ring in rings])
    return polygons


def _ring(points: Any, where: str) -> Ring:
    try:
        ring = np.asarray(points, np.float64)
    except (TypeError, ValueError):
        ring = np.empty(0)
    if ring.ndim != 2 or ring.shape[0] < 4 or ring.shape[1] < 2 or not np.isfinite(ring).all():
        raise SlideError("a ring must be a list of at least four finite (x, y) points", where=where)
    if not np.array_equal(ring[0], ring[-1]):
        raise SlideError("a ring does not end where it starts", where=where, hint="Repeat its first point at its end")
    return ring[:-1, :2]


def _closed(ring: Ring) -> list[list[float]]:
    return [[int(v) if float(v).is_integer() else float(v) for v in point] for point in [*ring, ring[0]]]


def _corners(start: npt.NDArray[np.int64], direction: npt.NDArray[np.int64], stride: int) -> Ring:
    """The vertices at which the walk turns."""
    turning = direction != np.roll(direction, 1)
    return np.stack((start[turning] % stride, start[turning] // stride), axis=1).astype(np.float64)


def _area(ring: Ring) -> float:
    x, y = ring.T
    return float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)) / 2


def _parity(rings: Polygon, shape: tuple[int, int]) -> Mask:
    """Even-odd fill: each edge flips, in every row whose centre it crosses, all pixels to its right."""
    height, width = shape
    begin = np.concatenate(rings)  # (e, 2) edge starts
    end = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    low, high = np.minimum(begin[:, 1], end[:, 1]), np.maximum(begin[:, 1], end[:, 1])
    first = np.clip(np.ceil(low - 0.5), 0, height).astype(np.int64)
    count = np.maximum(np.clip(np.ceil(high - 0.5), 0, height).astype(np.int64) - first, 0)
    edge = np.repeat(np.arange(len(begin)), count)  # (c,) one entry for each crossing
    row = first[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
    along = (row + 0.5 - begin[edge, 1]) / (end[edge, 1] - begin[edge, 1])
    x = begin[edge, 0] + along * (end[edge, 0] - begin[edge, 0])
    column = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)
    flips = np.bincount(row * (width + 1) + column, minlength=height * (width + 1)).reshape(height, width + 1)
    return np.asarray(np.cumsum(flips[:, :width], axis=1) % 2 == 1)
