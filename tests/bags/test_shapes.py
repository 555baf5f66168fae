"""Of bags that no model can read together the few are blamed, whichever comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from marble.bags.shapes import odd_ones_out
from marble.bags.store import BagStore
from marble.errors import BagError
from tests.bags.making import random_bag


def store_of(folder: Path, *bags: tuple[int, tuple[int, ...]]) -> BagStore:
    """Bags s0, s1, ... of these widths and ratios."""
    store = BagStore(folder)
    for number, (dim, ratios) in enumerate(bags):
        store.save(random_bag(f"s{number}", dim=dim, ratios=ratios))
    return store


@pytest.mark.parametrize("odd", [0, 2, 4])
def test_the_minority_is_blamed_wherever_it_stands(tmp_path: Path, odd: int) -> None:
    store = store_of(tmp_path, *((6 if number == odd else 8, (2,)) for number in range(5)))
    (blamed,) = odd_ones_out(store.records(), tmp_path).items()
    assert blamed[0] == f"s{odd}"
    assert str(blamed[1]).startswith(
        f"s{odd}: 2 levels of tokens 6 wide, but 2 levels of tokens 8 wide in 4 other bags. "
    )


def test_levels_count_as_widths_do_and_slides_without_a_bag_do_not(tmp_path: Path) -> None:
    store = store_of(tmp_path, (8, ()), (8, (2,)), (8, (2,)))
    for number in range(3):
        store.note(f"f{number}", "failed", "read", "no slide")
    assert list(odd_ones_out(store.records(), tmp_path)) == ["s0"]


def test_bags_of_one_shape_and_no_bags_are_all_fine(tmp_path: Path) -> None:
    assert odd_ones_out(store_of(tmp_path, (8, (2,)), (8, (4,))).records(), tmp_path) == {}
    assert odd_ones_out([], tmp_path) == {}


def test_without_a_majority_nobody_is_blamed(tmp_path: Path) -> None:
    store = store_of(tmp_path, (6, ()), (8, ()), (8, ()), (6, ()), (7, ()))
    with pytest.raises(BagError, match=r"2 with tokens 6 wide \(as 's0'\) and 2 with tokens 8 wide \(as 's1'\)"):
        odd_ones_out(store.records(), tmp_path)
