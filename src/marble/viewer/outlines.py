"""The tissue a bag was made from, as rings of level-0 pixels.

The extraction's own settings find the same tissue in the same file again. A bag whose tissue was drawn by hand, or that
another tool made, has no such settings: then the outline of its tiles is shown, and called that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marble.bags.bag import Bag
from marble.extract.spec import ExtractSpec
from marble.slides import outlines
from marble.slides.tissue import segment
from marble.viewer.registry import SlideEntry, StoredBag
from marble.viewer.tiles import Pictures


def tissue_rings(slide: SlideEntry, bag: StoredBag, pictures: Pictures) -> dict[str, Any]:
    """Rings, and what they are the outline of: `tissue` or `tiles`."""
    loaded = bag.load()
    settings = loaded.provenance.notes.get("extract")
    drawn = bag.record.details.get("source", {}).get("outlines_sha256")
    if settings is None or drawn is not None:
        return {"of": "tiles", "rings": tile_rings(loaded)}
    with pictures.slide(slide.file, bag) as opened:
        found = segment(opened, ExtractSpec.parse(settings, where="extract").tissue)
    rings = [np.rint(ring * found.l0_per_px).astype(int).tolist()
             for polygon in outlines.trace(found.mask) for ring in polygon]  # fmt: skip
    return {"of": "tissue", "rings": rings, "fraction": found.fraction}


def tile_rings(bag: Bag) -> list[list[list[int]]]:
    """The outline of the finest tiles."""
    cells = bag.finest.cells.numpy().astype(np.int64)  # (T, 2) row, column
    pitch = bag.pitch(bag.depth - 1)
    first = cells.min(axis=0)
    mask = np.zeros(cells.max(axis=0) - first + 1, np.bool_)
    mask[tuple((cells - first).T)] = True
    corner = first[::-1] * pitch + np.asarray(bag.l0_origin_px)  # x, y of the mask's first pixel
    return [np.rint(np.rint(ring) * pitch + corner).astype(np.int64).tolist()
            for polygon in outlines.trace(mask) for ring in polygon]  # fmt: skip
