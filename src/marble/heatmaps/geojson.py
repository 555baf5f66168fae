"""A map as GeoJSON that QuPath opens: one rectangle per tile in level-0 pixels, its value as a measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marble import files
from marble.attribution.tile_map import TileMap
from marble.heatmaps.colours import coloured, default_colours


def tiles_geojson(tiles: TileMap) -> dict[str, Any]:
    """A FeatureCollection; rank 1 is the tile with the largest value."""
    order = (-tiles.values).argsort(kind="stable")
    rank = order.argsort(kind="stable") + 1
    colours = coloured(tiles.scaled(), default_colours(tiles.signed)).tolist()
    features = []
    for i, ((x, y, width, height), (row, column), value) in enumerate(
        zip(tiles.l0_boxes.tolist(), tiles.cells.tolist(), tiles.values.tolist(), strict=True)
    ):
        ring = [[x, y], [x + width, y], [x + width, y + height], [x, y + height], [x, y]]
        features.append(
            {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": [ring]},
                "properties": {
                    "objectType": "tile",
                    "name": f"level {tiles.level}, row {row}, column {column}",
                    "color": colours[i],
                    "measurements": {tiles.name: value, "rank": int(rank[i]), "level": tiles.level},
                },
            }
        )
    return {"type": "FeatureCollection", "features": features}


def write_geojson(path: str | Path, tiles: TileMap) -> Path:
    return files.publish(path, json.dumps(tiles_geojson(tiles)))
