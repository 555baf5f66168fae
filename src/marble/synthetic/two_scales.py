"""Drawn slides whose class shows only where two scales are read together.

Tissue is a field of regions, each as large as one tile of the coarse level. In half of them glands stand (rings around
a pale lumen), in the other half solid nests of the same size: that is seen from afar. In some regions a few cells are
atypical: their chromatin is speckled, finer than a pixel of the coarse level, so from afar they look like their
neighbours, and a single close-up shows no more of the region than plain stroma.

    tumour   the atypical cells are in regions with glands
    benign   the atypical cells are in regions with nests

Both classes have the same glands, the same nests and the same atypical cells in the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from marble.synthetic.histology import glass, textures
from marble.synthetic.slides import DOWNSAMPLE, write_canvas

Pixels = npt.NDArray[np.uint8]  # (h, w, 3)
Floats = npt.NDArray[np.float32]
Region = Literal["glands", "nests", "plain"]  # plain: stroma and no structures, on `focal_slides` only

MPP = 0.5  # the finest level of the demo is 20x
TILE_PX = 256
TILES_PER_REGION = 4  # each way: the coarse level is 5x
REGION_PX = TILE_PX * TILES_PER_REGION
REGIONS = (2, 3)  # rows, columns
MARGIN_PX = REGION_PX  # of glass above and left: a whole region, so that regions and lattice agree
EDGE_PX = MARGIN_PX  # of glass below and right
STRUCTURES = 5  # glands or nests in a region
ATYPICAL_REGIONS = 3
ATYPICAL_TILES = 5  # in each of those
_STROMA, _DENSE = 1, 2  # of `textures`
_LUMEN = np.array((236, 224, 234), np.float32)
_CONTRAST = 60.0  # of the speckles, in grey values


@dataclass(frozen=True)
class Place:
    """A tile of the fine level: its region and its (row, column) there."""

    region: tuple[int, int]
    tile: tuple[int, int]

    @property
    def l0_box(self) -> tuple[int, int, int, int]:
        """x, y, width, height in level-0 pixels."""
        y, x = (MARGIN_PX + self.region[axis] * REGION_PX + self.tile[axis] * TILE_PX for axis in (0, 1))
        return x, y, TILE_PX, TILE_PX


@dataclass(frozen=True)
class Plan:
    """What stands where on one slide."""

    regions: dict[tuple[int, int], Region]
    structures: tuple[Place, ...]
    atypical: tuple[Place, ...]


def plan_slide(tumour: bool, seed: int, regions: tuple[int, int] = REGIONS) -> Plan:
    """Draw the lots of one slide; they do not depend on the class but for the kind of region that holds the cells."""
    rng = np.random.default_rng((seed, 2))
    rows, columns = regions
    places = [(row, column) for row in range(rows) for column in range(columns)]
    kinds: list[Region] = ["glands", "nests"] * (len(places) // 2)
    dealt = dict(zip(places, rng.permutation(kinds).tolist(), strict=True))
    chosen = [place for place in places if dealt[place] == ("glands" if tumour else "nests")]
    holders = {chosen[i] for i in rng.permutation(len(chosen))[:ATYPICAL_REGIONS].tolist()}
    structures, atypical = [], []
    for place in places:
        tiles = rng.permutation(TILES_PER_REGION**2)[: STRUCTURES + ATYPICAL_TILES].tolist()
        found = [Place(place, divmod(tile, TILES_PER_REGION)) for tile in tiles]
        structures += found[:STRUCTURES]
        if place in holders:
            atypical += found[STRUCTURES:]
    return Plan(dealt, tuple(structures), tuple(atypical))


def write_two_scale_slide(path: str | Path, tumour: bool, seed: int, regions: tuple[int, int] = REGIONS) -> Plan:
    """Draw one slide of so many rows and columns of regions, an even number in all; returns what was drawn where."""
    plan = plan_slide(tumour, seed, regions)
    draw_slide(path, plan, seed)
    return plan


def draw_slide(path: str | Path, plan: Plan, seed: int) -> None:
    """Draw what a plan says, with the cells of the seed."""
    write_canvas(path, _Field(plan, seed))


class _Field:
    """The slide as a canvas."""

    mpp = MPP

    def __init__(self, plan: Plan, seed: int) -> None:
        self.seed = seed
        rows, columns = (1 + max(place[axis] for place in plan.regions) for axis in (0, 1))
        self.size_px = (MARGIN_PX + columns * REGION_PX + EDGE_PX, MARGIN_PX + rows * REGION_PX + EDGE_PX)
        self.shift = np.random.default_rng((seed, 3)).integers(0, 4096, 2).tolist()
        self.structures = {place.l0_box[:2]: plan.regions[place.region] for place in plan.structures}
        self.atypical = {place.l0_box[:2] for place in plan.atypical}

    def part(self, x: int, y: int, width: int, height: int) -> Pixels:
        """The writer asks for tiles of the slide's own grid, which is the grid things are drawn on."""
        inside = all(MARGIN_PX <= at < size - EDGE_PX for at, size in zip((x, y), self.size_px, strict=True))
        if not inside:
            return glass(width, height)
        pixels = self._texture(_STROMA, x, y)
        rng = np.random.default_rng((self.seed, x, y))
        kind = self.structures.get((x, y))
        if kind is not None:
            dense = self._texture(_DENSE, x, y)
            radius = TILE_PX * rng.uniform(0.34, 0.44)
            pixels = _blend(pixels, dense, _disc(radius))
            if kind == "glands":
                pixels = _blend(pixels, _LUMEN, _disc(radius * 0.62))
        if (x, y) in self.atypical:
            pixels = _speckled(pixels, rng, _disc(TILE_PX * 0.46))
        shown: Pixels = np.rint(np.clip(pixels, 0, 255)).astype(np.uint8)
        return shown[:height, :width]

    def _texture(self, which: int, x: int, y: int) -> Floats:
        """(h, w, 3) of a texture, shifted by slide so that no two slides show the same cells."""
        part = textures(MPP).part(which, x + self.shift[0], y + self.shift[1], TILE_PX, TILE_PX)
        return part.astype(np.float32)


def _blend(under: Floats, over: Floats, mask: Floats) -> Floats:
    return np.asarray(under + (over - under) * mask[..., None], np.float32)


@lru_cache(maxsize=64)
def _disc(radius: float, edge_px: float = 6.0) -> Floats:
    """(TILE_PX, TILE_PX) 1 within a circle around the tile's centre, falling to 0 over its edge."""
    offset = np.arange(TILE_PX, dtype=np.float32) - (TILE_PX - 1) / 2
    distance = np.hypot(offset[:, None], offset[None, :])
    return np.asarray(np.clip((radius - distance) / edge_px + 0.5, 0, 1), np.float32)


def _speckled(pixels: Floats, rng: np.random.Generator, mask: Floats) -> Floats:
    """Chromatin in grains, whose mean over every pixel of the coarse level is nothing: unseen from afar.

    Grains are as strong as the darkest and the brightest of those pixels leave room for, since a value that had to be
    cut off would shift the mean.
    """
    n = TILE_PX // DOWNSAMPLE
    noise = np.clip(rng.standard_normal((n, DOWNSAMPLE, n, DOWNSAMPLE, 1)), -1, 1).astype(np.float32)
    noise -= noise.mean(axis=(1, 3), keepdims=True)
    blocks = pixels.reshape(n, DOWNSAMPLE, n, DOWNSAMPLE, 3)
    room = np.minimum(blocks, 255 - blocks).min(axis=(1, 3, 4), keepdims=True)  # (n, 1, n, 1, 1)
    even = mask.reshape(n, DOWNSAMPLE, n, DOWNSAMPLE, 1).mean(axis=(1, 3), keepdims=True)
    strength = np.minimum(_CONTRAST, room / 2) * even
    return np.asarray(blocks + noise * strength, np.float32).reshape(pixels.shape)
