"""How far a map can be believed: remove tiles from the most important down (deletion), or add them (insertion).

A faithful map makes the score fall early when its best tiles go, and rise early when they come: a small area under the
deletion curve, a large one under the insertion curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marble.attribution.scores import Score
from marble.bags.augment import keep_branches
from marble.bags.bag import Bag
from marble.errors import InputError
from marble.models.base import BagModel
from marble.models.inference import infer

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curves:
    """The score against the share of tiles removed (deletion) or present (insertion)."""

    removed: Floats  # (n,) shares, from 0
    deletion: Floats  # (n,) score of what is left
    present: Floats  # (n,) shares, up to 1
    insertion: Floats  # (n,) score of what is there

    @property
    def deletion_area(self) -> float:
        """Mean height of the deletion curve; smaller is more faithful."""
        return _mean_height(self.removed, self.deletion)

    @property
    def insertion_area(self) -> float:
        """Mean height of the insertion curve; larger is more faithful."""
        return _mean_height(self.present, self.insertion)


def deletion_insertion(
    model: BagModel, bag: Bag, values: Tensor, score: Score, *, level: int = -1, steps: int = 20, orders: int = 1
) -> Curves:
    """Both curves of a map `values` (T_level,) of one level, in about `steps` equal steps.

    Tiles go and come with their descendants. A bag is never empty: deletion leaves the last tile that keeps every
    level filled, and insertion starts there.
    """
    k = level if level >= 0 else bag.depth + level
    tiles = len(bag.levels[k])
    if values.shape != (tiles,):
        raise InputError(f"values must be ({tiles},), got {tuple(values.shape)}", where=bag.slide_id)
    if tiles < 2 or steps < 1:
        raise InputError("curves need at least two tiles and one step", where=bag.slide_id)
    order = torch.argsort(values, descending=True, stable=True)  # most important first
    counts = sorted({round(tiles * i / steps) for i in range(steps + 1)})
    removed, deletion, present, insertion = [], [], [], []
    for count in counts:
        without = _kept(bag, order[count:], k)
        if without is not None:
            removed.append(count / tiles)
            deletion.append(_score(model, without, score, orders))
        only = _kept(bag, order[:count], k)
        if only is not None:
            present.append(count / tiles)
            insertion.append(_score(model, only, score, orders))
    return Curves(np.array(removed), np.array(deletion), np.array(present), np.array(insertion))


def _kept(bag: Bag, tiles: Tensor, level: int) -> Bag | None:
    """Only these tiles of a level, with their descendants; None if a level would be empty."""
    keep = torch.zeros(len(bag.levels[level]), dtype=torch.bool)
    keep[tiles] = True
    filled = keep
    for k in range(level + 1, bag.depth):
        parent = bag.levels[k].parent
        assert parent is not None
        filled = filled[parent]
    return keep_branches(bag, keep, level) if bool(filled.any()) else None


def _score(model: BagModel, bag: Bag, score: Score, orders: int) -> float:
    return float(score.of(infer(model, bag, orders).logits.double()))


def _mean_height(x: Floats, y: Floats) -> float:
    return float(np.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 else float(y[0])
