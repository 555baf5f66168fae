"""The order in which a scan reads the tokens of a level.

    shuffle            as they come: training deals a new order at each step, a prediction averages over fixed ones
    raster             row by row
    hilbert            along a Hilbert curve over the level's cells: what is near in the order is near on the slide
    coarse-attention   by their parents' score, best parent first, siblings row by row; the coarsest level row by row
    learned            by a score of the token itself, best first

All but `shuffle` follow from the cells and the tokens alone, so a prediction needs one pass. Sorting has no gradient:
the two learned scores s take part in the result through a factor 2 sigmoid(s), on what a child is given by its parent
and on the token itself, and that is what trains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from marble.bags.bag import Level, cell_keys
from marble.errors import InputError
from marble.specs import unknown_choice

ORDERS = ["shuffle", "raster", "hilbert", "coarse-attention", "learned"]


def order_of_each_level(asked: str | Sequence[str], levels: int) -> tuple[str, ...]:
    """One name per level, from one for all or one for each."""
    names = (asked,) * levels if isinstance(asked, str) else tuple(asked)
    for name in names:
        if name not in ORDERS:
            raise InputError(unknown_choice("order", str(name), ORDERS), where="model 'marble'")
    if len(names) != levels:
        raise InputError(
            f"{len(names)} orders for {levels} levels", where="model 'marble'", hint="Give one, or one for each level"
        )
    return names


def arranged(levels: Sequence[Level], names: Sequence[str]) -> tuple[list[Level], list[Tensor | None]]:
    """The levels in the orders that follow from cells, and each level's order; None where it is as it was.

    Levels read by a learned score start row by row, so that equal scores are read the same way in any stored order.
    """
    moved: list[Level] = []
    orders: list[Tensor | None] = []
    for k, (level, name) in enumerate(zip(levels, names, strict=True)):
        order = None if name == "shuffle" else hilbert_order(level.cells) if name == "hilbert" else raster_order(level)
        parent = level.parent
        if k > 0 and parent is not None and orders[-1] is not None:
            parent = inverse(orders[-1])[parent]
        if order is None:
            moved.append(replace(level, parent=parent))
        else:
            moved.append(level.take(order, None if parent is None else parent[order]))
        orders.append(order)
    return moved, orders


def inverse(order: Tensor) -> Tensor:
    """(T,) the place at which each token is read."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return place


def raster_order(level: Level) -> Tensor | None:
    """(T,) row-major; None if the tokens are so already."""
    keys = cell_keys(level.cells)
    return None if bool((keys[1:] > keys[:-1]).all()) else torch.argsort(keys)


def hilbert_order(cells: Tensor) -> Tensor:
    """(T,) along the Hilbert curve of the smallest square of 2^b cells a side that holds all `cells` (T, 2)."""
    place = cells.to(torch.int64) - cells.min(dim=0).values
    bits = max(1, int(place.max()).bit_length())
    return torch.argsort(hilbert_index(place[:, 0], place[:, 1], bits))


def hilbert_index(row: Tensor, col: Tensor, bits: int) -> Tensor:
    """(T,) how far along the curve each cell of a square of 2^bits lies; one step goes to a neighbouring cell.

    Quadrant by quadrant from the largest: the curve visits them in the order of a U, and the curve inside the first
    and the last is mirrored along a diagonal so that ends meet.
    """
    x, y, index = col.clone(), row.clone(), torch.zeros_like(row)
    for bit in range(bits - 1, -1, -1):
        right, low = (x >> bit) & 1, (y >> bit) & 1
        index = 4 * index + ((3 * right) ^ low)
        x, y = x & ((1 << bit) - 1), y & ((1 << bit) - 1)
        far = (1 << bit) - 1
        flip = (right == 1) & (low == 0)
        x, y = torch.where(flip, far - x, x), torch.where(flip, far - y, y)
        x, y = torch.where(low == 0, y, x), torch.where(low == 0, x, y)
    return index


def best_first(scores: Tensor) -> Tensor:
    """(T,) from the highest score to the lowest; equal ones as they are."""
    return torch.argsort(scores.detach(), descending=True, stable=True)


def factor(scores: Tensor) -> Tensor:
    """How a score takes part in what it orders: 1 where it is 0, between 0 and 2."""
    return 2 * torch.sigmoid(scores)


def is_scored(name: str, k: int) -> bool:
    """Whether reading level k in this order takes a learned score."""
    return name == "learned" or (name == "coarse-attention" and k > 0)
