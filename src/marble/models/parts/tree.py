"""What models of several levels ask of a bag's tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marble.bags.bag import Bag, Level
from marble.errors import BagError


def finest_levels(bag: Bag, wanted: int) -> tuple[Level, ...]:
    """The bag's `wanted` finest levels, coarsest first."""
    if bag.depth < wanted:
        raise BagError(
            f"the model reads {wanted} levels, the bag has {bag.depth}",
            where=bag.slide_id,
            hint=f"Build the model with levels={bag.depth}, or make bags of {wanted} magnifications",
        )
    return bag.levels[-wanted:]


def ancestors(levels: Sequence[Level]) -> list[Tensor]:
    """For each level the (T_finest,) index of every finest tile's ancestor in it; for the finest, the tile itself."""
    index = torch.arange(len(levels[-1]), device=levels[-1].features.device)
    found = [index]
    for level in reversed(levels[1:]):
        assert level.parent is not None
        index = level.parent[index]
        found.append(index)
    return found[::-1]


def spread(shares: Tensor, ancestor: Tensor) -> Tensor:
    """(T_finest,) each tile's share (T,) dealt out evenly to its finest descendants; without any, it is lost."""
    counted = torch.zeros(len(shares), dtype=torch.int64, device=ancestor.device)
    descendants = counted.index_add_(0, ancestor, torch.ones_like(ancestor))
    return (shares / descendants.clamp_min(1))[ancestor]
