"""Bags whose class is in the order along a row: what both classes share, counted, and what tells them apart."""

from __future__ import annotations

import pytest
import torch

from marble.bags.bag import Bag
from marble.synthetic.bags import BagRecipe, direction
from marble.synthetic.neighbours import RATIO, make_neighbour_bag

RECIPE = BagRecipe(dim=16, coarse=(6, 10), strength=40.0)  # so strong that a token tells whether its tile is marked


def _marked(bag: Bag) -> list[tuple[int, int, int]]:
    """(parent, row, column) of every marked tile, rows and columns counted within the parent."""
    fine = bag.finest
    assert fine.parent is not None
    shows = fine.features @ direction("pattern", RECIPE.dim) > 0
    place = fine.cells % RATIO
    return [
        (int(parent), int(row), int(column))
        for parent, (row, column), it_does in zip(fine.parent, place, shows, strict=True)
        if it_does
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_pair_lies_side_by_side_or_apart_in_one_row_of_each_coarse_tile(seed: int) -> None:
    for share, gap in ((1.0, 1), (0.0, 2)):
        bag = make_neighbour_bag("slide", share, RECIPE, seed)
        found = _marked(bag)
        assert len(bag.finest) == RATIO**2 * len(bag.levels[0])
        assert [parent for parent, _, _ in found] == [i // 2 for i in range(2 * len(bag.levels[0]))]
        for (_, row, column), (_, other_row, other_column) in zip(found[::2], found[1::2], strict=True):
            assert (other_row, other_column) == (row, column + gap)


def test_no_place_and_no_level_tells_the_classes_apart() -> None:
    """Every column of a coarse tile is marked equally often in both, and their coarse levels are the same bytes."""
    counts = {}
    for share in (0.0, 1.0):
        bags = [make_neighbour_bag(f"s{i}", share, RECIPE) for i in range(200)]
        columns = torch.tensor([column for bag in bags for _, _, column in _marked(bag)])
        counts[share] = torch.bincount(columns, minlength=RATIO) / len(columns)
        assert torch.allclose(counts[share], torch.full((RATIO,), 1 / RATIO), atol=0.03)
    first, second = (make_neighbour_bag("same", share, RECIPE).levels[0] for share in (0.0, 1.0))
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.cells, second.cells)
