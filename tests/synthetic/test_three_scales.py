"""The cohort that needs three levels: counts by hand, and no pair of levels that could tell the classes apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from marble.bags.bag import Bag
from marble.synthetic.bags import BagRecipe, direction
from marble.synthetic.three_scales import make_three_scale_bag, without_level

RECIPE = BagRecipe(dim=16, children=4, strength=40.0)  # so strong that a tile's kind can be read off its token


def _kinds(bag: Bag) -> list[Tensor]:
    """Of every finest tile: inside A, inside P, shows the pattern."""
    names = ("region", "zone", "pattern")
    by_level = [level.features @ direction(name, 16) > 0 for level, name in zip(bag.levels, names, strict=True)]
    return [kind[bag.ancestors(k)] for k, kind in enumerate(by_level)]


@pytest.mark.parametrize("seed", range(5))
def test_only_the_three_together_tell_the_classes_apart(seed: int) -> None:
    counts = []
    for share in (0, 1):
        a, p, shows = _kinds(make_three_scale_bag(f"s{seed}", share, RECIPE, seed))
        where_it_agrees = (a == p)[shows]
        assert bool(where_it_agrees.all()) if share else not bool(where_it_agrees.any())
        pairs = {
            (first, second): [int(((x == i) & (y == j)).sum()) for i in (True, False) for j in (True, False)]
            for first, x, second, y in (("a", a, "p", p), ("a", a, "shows", shows), ("p", p, "shows", shows))
        }
        counts.append(pairs)
    assert counts[0] == counts[1]  # every table of two levels is the same in both classes


def test_a_level_left_out_leaves_a_bag() -> None:
    bag = make_three_scale_bag("s", 1, RECIPE)
    for level in range(3):
        rest = without_level(bag, level)
        assert rest.depth == 2
        kept = [k for k in range(3) if k != level]
        assert all(torch.equal(rest.levels[i].cells, bag.levels[k].cells) for i, k in enumerate(kept))
    parent = without_level(bag, 1).levels[1].parent
    assert parent is not None
    assert torch.equal(bag.levels[0].cells[parent], bag.levels[2].cells // 16)
