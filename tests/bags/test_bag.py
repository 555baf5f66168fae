"""A bag is valid or it does not exist."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from marble.bags.bag import Bag, Level
from marble.errors import BagError, MarbleError, NonFiniteError
from tests.bags.making import random_bag


def test_the_ratio_is_found_from_the_cells() -> None:
    for ratios in [(2,), (4,), (16,), (2, 4), (1,)]:
        bag = random_bag(ratios=ratios)
        found = tuple(level.ratio for level in bag.levels[1:])
        for level, above in zip(bag.levels[1:], bag.levels[:-1], strict=True):
            assert level.ratio is not None
            assert torch.equal(level.cells // level.ratio, above.cells[level.parent])
        assert found == ratios


def test_numpy_arrays_are_taken_without_a_copy() -> None:
    features = np.zeros((2, 3), dtype=np.float16)
    bag = Bag("a", [Level(features, np.array([[0, 0], [0, 1]]))])  # type: ignore[arg-type]
    assert bag.finest.features.data_ptr() == features.ctypes.data


def test_negative_cells_are_fine() -> None:
    level0 = Level(torch.ones(1, 2), torch.tensor([[-1, -1]]))
    level1 = Level(torch.ones(2, 2), torch.tensor([[-1, -4], [-4, -1]]), parent=torch.tensor([0, 0]))
    assert Bag("a", [level0, level1]).levels[1].ratio == 4


def _broken(what: str) -> Bag:
    bag = random_bag()
    coarse, fine = bag.levels
    assert fine.parent is not None
    features = fine.features.clone()
    if what == "nan":
        features[3, 2] = float("nan")
    elif what == "inf":
        features[3, 2] = float("inf")
    elif what == "huge but finite":
        features[:] = 6e4
        return Bag("s", [coarse, replace(fine, features=features.half())])
    elif what == "fp16 overflow":
        return Bag("s", [coarse, replace(fine, features=(features + 1e6).half())])
    elif what == "integers":
        return Bag("s", [coarse, replace(fine, features=features.long())])
    elif what == "one axis":
        return Bag("s", [coarse, replace(fine, features=features[:, 0])])
    elif what == "empty":
        return Bag("s", [replace(coarse, features=coarse.features[:0], cells=coarse.cells[:0])])
    elif what == "no level":
        return Bag("s", [])
    elif what == "no id":
        return Bag("", [coarse])
    elif what == "cells short":
        return Bag("s", [coarse, replace(fine, cells=fine.cells[1:])])
    elif what == "cells twice":
        cells = fine.cells.clone()
        cells[1] = cells[0]
        return Bag("s", [coarse, replace(fine, cells=cells)])
    elif what == "parent on top":
        return Bag("s", [replace(coarse, parent=torch.zeros(5))])
    elif what == "no parent":
        return Bag("s", [coarse, replace(fine, parent=None)])
    elif what == "parent short":
        return Bag("s", [coarse, replace(fine, parent=fine.parent[1:])])
    elif what == "parent beyond":
        parent = fine.parent.clone()
        parent[7] = 5
        return Bag("s", [coarse, replace(fine, parent=parent)])
    elif what == "parent below":
        parent = fine.parent.clone()
        parent[7] = -1
        return Bag("s", [coarse, replace(fine, parent=parent)])
    elif what == "wrong parent":
        parent = fine.parent.clone()
        parent[0] = (parent[0] + 1) % 5
        return Bag("s", [coarse, replace(fine, parent=parent)])
    elif what == "wrong parent, no ratio":
        parent = fine.parent.clone()
        parent[0] = (parent[0] + 1) % 5
        return Bag("s", [coarse, replace(fine, parent=parent, ratio=None)])
    return Bag("s", [coarse, replace(fine, features=features)])


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("nan", r"s, level 1: features hold NaN or infinity in row 3 \(1 rows\)"),
        ("inf", r"s, level 1: features hold NaN or infinity in row 3"),
        ("fp16 overflow", r"s, level 1: features hold NaN or infinity in row 0"),
        ("integers", r"s, level 1: features must be \(T, D\) of float16, float32 or float64.*int64"),
        ("one axis", r"s, level 1: features must be \(T, D\)"),
        ("empty", r"s, level 0: features are empty"),
        ("no level", r"s: a bag needs at least one level"),
        ("no id", r"slide_id must be a non-empty string"),
        ("cells short", r"s, level 1: cells must be \(53, 2\), got \(52, 2\)"),
        ("cells twice", r"s, level 1: cell \(\d+, \d+\) occurs more than once"),
        ("parent on top", r"s, level 0: the coarsest level has no parents"),
        ("no parent", r"s, level 1: 'parent' is missing"),
        ("parent short", r"s, level 1: parent must be \(53,\), got \(52,\)"),
        ("parent beyond", r"s, level 1: parent 5 of row 7 is out of range; the level above has 5 tiles"),
        ("parent below", r"s, level 1: parent -1 of row 7 is out of range"),
        ("wrong parent", r"s, level 1: row 0: cell \[\d+, \d+\] // 4 is not its parent's cell"),
        ("wrong parent, no ratio", r"s, level 1: parents do not follow the cells"),
    ],
)
def test_a_broken_rule_is_named(what: str, says: str) -> None:
    with pytest.raises(MarbleError, match=says) as caught:
        _broken(what)
    assert isinstance(caught.value, NonFiniteError if "NaN" in says else BagError)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_found_wherever_it_stands(dtype: torch.dtype, value: float) -> None:
    tokens = torch.randn(9, 37, generator=torch.Generator().manual_seed(0)).to(dtype)
    Bag.of_tokens(tokens)
    for place in range(tokens.numel()):
        spoiled = tokens.clone()
        spoiled.view(-1)[place] = value
        with pytest.raises(NonFiniteError, match=rf"in row {place // 37} \(1 rows\)"):
            Bag.of_tokens(spoiled)


def test_large_finite_numbers_are_not_mistaken_for_infinity() -> None:
    assert _broken("huge but finite").finest.features.dtype == torch.float16


def test_ancestors() -> None:
    bag = random_bag(ratios=(2, 4))
    up = bag.ancestors(0)
    assert torch.equal(bag.finest.cells // 8, bag.levels[0].cells[up])
    assert torch.equal(bag.ancestors(2), torch.arange(len(bag.finest)))
