"""Attention at every level the model's reading covers: a coarse tile shows the highest of the tiles below it.

The model attends to the tiles of one level. A few cells it looks at closely are to be found from afar as well; a sum
would hide them behind the many tiles beside them, and make regions with less tissue look colder than they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marble.bags.bag import Bag, cell_keys
from marble.errors import InputError
from marble.models.inference import Prediction


def attention_by_level(bag: Bag, prediction: Prediction) -> list[Tensor]:
    """(T_k,) float64 for each level from the coarsest to the one the model reads, which sums to 1 up to rounding.

    Values are in the order of `bag.levels[k]`, whatever order the bag is stored in. A model that reads a coarse level
    has looked at nothing finer, so there is nothing to show below it.
    """
    level = bag.levels[prediction.level]
    order = torch.argsort(cell_keys(level.cells))  # row-major, as the prediction's cells are
    if prediction.slide_id != bag.slide_id or not torch.equal(level.cells[order], prediction.cells):
        raise InputError("the prediction was made from another bag", where=bag.slide_id)
    values = torch.empty(len(level), dtype=torch.float64)
    values[order] = prediction.attention.detach().double().cpu()
    return lift(bag, values, prediction.level)


def lift(bag: Bag, values: Tensor, level: int) -> list[Tensor]:
    """`values` (T_level,) of one level, and the highest below each tile of every coarser one; coarsest first."""
    found = [values.double()]
    for k in range(level, 0, -1):
        parent = bag.levels[k].parent
        assert parent is not None
        above = torch.zeros(len(bag.levels[k - 1]), dtype=torch.float64)  # of a tile with none below it
        found.append(above.scatter_reduce(0, parent, found[-1], "amax"))
    return found[::-1]
