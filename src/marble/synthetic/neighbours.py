"""Made-up bags whose class is in the order of tiles along a row, and in nothing else.

Every coarse tile holds one row with two marked fine tiles.

    positive   the two lie side by side: in columns 0 and 1, or 2 and 3
    negative   one tile lies between them: columns 0 and 2, or 1 and 3

Both classes have as many marked tiles, in each coarse tile, in each row and in each column; coarse tiles say nothing.
Who reads tiles in an order that has nothing to do with their places, or in none, is at chance.
"""

from __future__ import annotations

import torch

from marble.bags.augment import generator
from marble.bags.bag import Bag, Level
from marble.synthetic.bags import BagRecipe, make_bag, tokens_that_show

#: fine tiles along a row of a coarse one
RATIO = 4
BESIDE, APART = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 2], [1, 3]])  # columns of the two marked tiles


def make_neighbour_bag(slide_id: str, share: float, recipe: BagRecipe, seed: int = 0) -> Bag:
    """A two-level bag in which the marked tiles of a fraction `share` of the coarse tiles lie side by side.

    A coarse tile holds all its RATIO * RATIO fine ones; of `recipe` this takes width, strength and number of tiles.
    """
    rng = generator(seed, slide_id, "synthetic-neighbours")
    plain = make_bag(slide_id, 0.5, recipe, seed)
    coarse = plain.levels[0]
    total = len(coarse)
    beside = torch.randperm(total, generator=rng) < round(share * total)  # (T0,)
    which = torch.randint(2, (total,), generator=rng)
    columns = torch.where(beside[:, None], BESIDE[which], APART[which])  # (T0, 2)
    row = torch.randint(RATIO, (total, 1), generator=rng)
    marked = torch.zeros(total, RATIO**2, dtype=torch.bool)
    marked.scatter_(1, row * RATIO + columns, True)

    parent = torch.arange(total).repeat_interleave(RATIO**2)  # (T1,)
    place = torch.arange(RATIO**2).repeat(total)  # (T1,)
    cells = coarse.cells[parent] * RATIO + torch.stack([place // RATIO, place % RATIO], dim=1)
    fine = Level(tokens_that_show(marked.flatten(), "pattern", recipe, rng), cells, parent, RATIO)
    return Bag(slide_id, [coarse, fine], plain.provenance)
