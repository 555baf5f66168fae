"""Drawn slides of which few regions matter: a focus in a larger piece of plain tissue.

Regions and what is in them are drawn as in `two_scales`, and the class is in atypical cells again:

    tumour   the cells of the glands are atypical
    benign   the cells of the nests are atypical

Most regions are plain stroma, without glands or nests, which is seen from afar; that cells are atypical is not. Some
atypical cells are strewn over the plain regions, in both classes alike: they mean nothing, and whoever looks at all
tiles has to disregard them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from marble.synthetic.two_scales import TILES_PER_REGION, Place, Plan, Region, draw_slide

REGIONS = (3, 4)  # rows, columns
GLANDS = NESTS = 1  # regions of each kind
STRUCTURES = 8  # glands or nests in such a region
STREWN_TILES = 8  # over all plain regions: as many as mean something
_TILES = TILES_PER_REGION**2


def plan_focal_slide(tumour: bool, seed: int) -> Plan:
    """Draw the lots of one slide; they do not depend on the class but for the kind that has the cells."""
    rng = np.random.default_rng((seed, 4))
    rows, columns = REGIONS
    places = [(row, column) for row in range(rows) for column in range(columns)]
    counts: dict[Region, int] = {"glands": GLANDS, "nests": NESTS, "plain": len(places) - GLANDS - NESTS}
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    dealt = dict(zip(places, rng.permutation(kinds).tolist(), strict=True))
    structures = []
    for place in (place for place in places if dealt[place] != "plain"):
        tiles = rng.permutation(_TILES)[:STRUCTURES].tolist()
        structures += [Place(place, divmod(tile, TILES_PER_REGION)) for tile in tiles]
    atypical = [place for place in structures if dealt[place.region] == ("glands" if tumour else "nests")]
    plain = [place for place in places if dealt[place] == "plain"]
    for lot in rng.permutation(len(plain) * _TILES)[:STREWN_TILES].tolist():
        region, tile = divmod(lot, _TILES)
        atypical.append(Place(plain[region], divmod(tile, TILES_PER_REGION)))
    return Plan(dealt, tuple(structures), tuple(atypical))


def write_focal_slide(path: str | Path, tumour: bool, seed: int) -> Plan:
    """Draw one slide; returns what was drawn where."""
    plan = plan_focal_slide(tumour, seed)
    draw_slide(path, plan, seed)
    return plan
