"""Orders and branch drops keep a bag a bag."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.bags.augment import canonical, drop_coarse, generator, keep_branches, shuffled
from marble.bags.bag import Bag
from marble.errors import InputError
from tests.bags.making import random_bag

RATIOS = st.lists(st.sampled_from([2, 4]), max_size=2).map(tuple)


def _checked(bag: Bag) -> Bag:
    return Bag(bag.slide_id, bag.levels, bag.provenance)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), coarse=st.integers(1, 9), ratios=RATIOS)
def test_any_order_has_one_canonical_form(seed: int, coarse: int, ratios: tuple[int, ...]) -> None:
    bag = random_bag(coarse=coarse, ratios=ratios)
    other = _checked(shuffled(bag, generator(seed)))
    for a, b in zip(canonical(bag).levels, canonical(other).levels, strict=True):
        assert torch.equal(a.features, b.features)
        assert torch.equal(a.cells, b.cells)
        assert (a.parent is None and b.parent is None) or torch.equal(a.parent, b.parent)  # type: ignore[arg-type]
        order = [tuple(cell) for cell in a.cells.tolist()]
        assert order == sorted(order)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), coarse=st.integers(2, 9), ratios=RATIOS)
def test_dropping_a_tile_removes_all_and_only_its_descendants(seed: int, coarse: int, ratios: tuple[int, ...]) -> None:
    bag = random_bag(coarse=coarse, ratios=ratios)
    keep = torch.rand(coarse, generator=generator(seed)) < 0.6
    if not bool(keep[bag.ancestors(0)].any()):
        return
    kept = _checked(keep_branches(bag, keep))
    total = 1
    for k, level in enumerate(bag.levels):
        total *= level.ratio or 1
        alive = {tuple(cell) for cell in bag.levels[0].cells[keep].tolist()}
        expected = [tuple(cell) for cell in level.cells.tolist() if tuple(c // total for c in cell) in alive]
        assert [tuple(cell) for cell in kept.levels[k].cells.tolist()] == expected


def test_branches_of_a_middle_level() -> None:
    bag = random_bag(ratios=(2, 4))
    keep = torch.ones(len(bag.levels[1]), dtype=torch.bool)
    keep[::2] = False
    kept = _checked(keep_branches(bag, keep, level=1))
    assert len(kept.levels[0]) == len(bag.levels[0])
    assert torch.equal(kept.levels[1].features, bag.levels[1].features[keep])
    assert torch.equal(kept.levels[2].features, bag.levels[2].features[keep[bag.levels[2].parent]])


def test_keeping_nothing_is_refused() -> None:
    bag = random_bag()
    with pytest.raises(InputError, match="s: level 0 would be left without a tile"):
        keep_branches(bag, torch.zeros(5, dtype=torch.bool))


def test_the_mean_number_of_dropped_tiles_is_exact() -> None:
    for coarse in (3, 20):
        bag = random_bag(coarse=coarse)
        left = [len(drop_coarse(bag, 0.1, generator(draw)).levels[0]) for draw in range(2000)]
        dropped = coarse - sum(left) / len(left)
        assert dropped == pytest.approx(0.1 * coarse, abs=0.05)


def test_dropping_never_empties_a_bag_and_is_reproducible() -> None:
    for coarse in (1, 2):
        bag = random_bag(coarse=coarse)
        for draw in range(50):
            left = drop_coarse(bag, 0.9, generator(draw))
            assert len(left.levels[0]) >= 1
            assert torch.equal(left.finest.cells, drop_coarse(bag, 0.9, generator(draw)).finest.cells)
    assert drop_coarse(bag, 0.0, generator(0)) is bag
    with pytest.raises(InputError, match="drop_rate must be in"):
        drop_coarse(bag, 1.0, generator(0))


def test_generators_differ_by_every_part_of_their_key() -> None:
    draws = {
        float(torch.rand((), generator=generator(*key)))
        for key in [
            (0, 1, "a", "drop"),
            (1, 1, "a", "drop"),
            (0, 2, "a", "drop"),
            (0, 1, "b", "drop"),
            (0, 1, "a", "x"),
        ]
    }
    assert len(draws) == 5
    assert generator(1, 11).initial_seed() != generator(11, 1).initial_seed()
