"""Branch occlusion: drop a tile with all its descendants, the regulariser's own operation, and see what changes.

The model was trained on bags with branches missing, so such a bag is nothing strange to it; that makes the answer
faithful at the coarse level, where gradients and attention are indirect.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from marble.attribution.scores import Score
from marble.bags.augment import keep_branches
from marble.bags.bag import Bag
from marble.errors import InputError
from marble.models.base import BagModel
from marble.models.inference import infer

OnTile = Callable[[int, int], object]  # tiles done, tiles in all


def branch_occlusion(
    model: BagModel, bag: Bag, score: Score, *, level: int = 0, orders: int = 1, on_tile: OnTile | None = None
) -> Tensor:
    """(T_level,) float64: by how much the score falls when each tile of `level` is dropped with its descendants.

    Positive: the tile speaks for the class or raises the risk. `orders` fixed token orders are averaged, as in a
    prediction; the same ones with and without the tile. `on_tile` hears after each tile how many of all are done.
    """
    tiles = len(bag.levels[level])
    whole = _score(model, bag, score, orders)
    changes = torch.empty(tiles, dtype=torch.float64)
    for tile in range(tiles):
        keep = torch.ones(tiles, dtype=torch.bool)
        keep[tile] = False
        try:
            rest = keep_branches(bag, keep, level)
        except InputError:
            raise InputError(
                f"tile {tile} of level {level} cannot be dropped: it is all there is of a level",
                where=bag.slide_id,
                hint="Slides this small are explained by attention or gradient",
            ) from None
        changes[tile] = whole - _score(model, rest, score, orders)
        if on_tile is not None:
            on_tile(tile + 1, tiles)
    return changes


def _score(model: BagModel, bag: Bag, score: Score, orders: int) -> float:
    return float(score.of(infer(model, bag, orders).logits.double()))
