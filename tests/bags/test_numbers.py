"""Arrays as notebooks have them become the same tokens."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from marble.bags.bag import Bag, Level
from marble.bags.numbers import tensor_of
from marble.errors import BagError

TOKENS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    "given",
    [
        TOKENS[::-1][::-1],
        np.flip(np.flip(TOKENS, 1).copy(), 1),
        np.asfortranarray(TOKENS),
        TOKENS.astype(">f4"),
        TOKENS.astype(">u2"),
        TOKENS.astype(np.longdouble),
        TOKENS.astype(object),
        np.ma.masked_array(TOKENS, mask=False),
        pandas.DataFrame(TOKENS).convert_dtypes(),
        pandas.Series(list(TOKENS), index=[7, 2, 5, 1]),
        pandas.Series(list(TOKENS)).to_numpy(),
        TOKENS.tolist(),
        torch.from_numpy(TOKENS).T.contiguous().T,
    ],
)
def test_numbers_are_read_however_they_lie(given: Any) -> None:
    assert torch.equal(tensor_of(given, "tokens").to(torch.float32), torch.from_numpy(TOKENS))


def test_cells_and_parents_are_read_however_they_lie() -> None:
    above: Any = (TOKENS[:1].astype(">f4"), np.zeros((1, 2), ">i4"))
    below: Any = (TOKENS[::-1], np.array([[0, 0], [0, 1], [1, 0], [1, 1]])[::-1], np.zeros(4, ">i8"), 2)
    bag = Bag("s", [Level(*above), Level(*below)])
    assert bag.finest.cells.tolist() == below[1].tolist()


def test_numbers_that_may_not_be_written_are_read_without_a_word() -> None:
    fixed = np.frombuffer(TOKENS.tobytes(), np.float32).reshape(TOKENS.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(tensor_of(fixed, "tokens"), torch.from_numpy(TOKENS))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ma.masked_less(TOKENS, 2), "tokens hold masked numbers"),
        (torch.eye(3).to_sparse(), "tokens must be a dense tensor. Give its .to_dense()"),
        (TOKENS.astype(str), "tokens must be an array of numbers, got ndarray"),
        (np.array([[1, "a"]], dtype=object), "tokens must be an array of numbers, got ndarray"),
        ([[1, 2], [3]], "tokens must be an array of numbers, got list"),
        (None, "tokens must be an array of numbers, got NoneType"),
    ],
)
def test_what_holds_no_numbers_is_refused(given: Any, said: str) -> None:
    with pytest.raises(BagError) as refused:
        tensor_of(given, "tokens")
    assert str(refused.value).startswith(said)
