"""What a model is given: bags, tokens of torch or numpy, lists of these; and sizes that are whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import marble
from marble.errors import BagError, InputError


@pytest.fixture
def model() -> marble.BagModel:
    torch.manual_seed(0)
    return marble.build("abmil", dim=4, outputs=2).eval()


def test_tokens_of_numpy_and_torch_are_one_bag(model: marble.BagModel) -> None:
    tokens = torch.arange(12.0).reshape(3, 4)
    bag = marble.Bag("tokens", [marble.Level(tokens, torch.tensor([[0, 0], [0, 1], [0, 2]]))])
    said = marble.predict(model, bag)
    for given in (tokens, tokens.numpy(), tokens.double().numpy()):
        assert torch.equal(model(given).logits, model(bag).logits)
        assert torch.equal(marble.predict(model, given).logits, said.logits)
    assert len(model([tokens, tokens.numpy(), bag])) == 3


@pytest.mark.parametrize("given", [None, "slide.svs", {}, 3])
def test_what_is_no_bag_is_refused(model: marble.BagModel, given: Any) -> None:
    for ask in (model, lambda one: marble.predict(model, one)):
        with pytest.raises(InputError, match=r"a model reads a bag or tokens \(N, D\), got"):
            ask(given)


@pytest.mark.parametrize("given", [np.array([["a"]]), np.array([[None]])])
def test_tokens_that_are_no_numbers_are_refused(model: marble.BagModel, given: Any) -> None:
    with pytest.raises(BagError, match="tokens must be an array of numbers"):
        model(given)


@pytest.mark.parametrize(("features", "cells"), [(None, [[0, 0]]), ([[1.0]], None), ([[1.0], [1.0, 2.0]], [[0, 0]])])
def test_a_level_of_no_numbers_is_refused(features: Any, cells: Any) -> None:
    with pytest.raises(BagError, match="must be an array of numbers"):
        marble.Level(features, cells)


@pytest.mark.parametrize("name", ["marble", "abmil"])
@pytest.mark.parametrize(("size", "value"), [("dim", "4"), ("dim", 4.0), ("dim", True), ("dim", 0), ("outputs", "2")])
def test_sizes_are_whole_numbers(name: str, size: str, value: Any) -> None:
    sizes: dict[str, Any] = {"dim": 4, "outputs": 2, size: value}
    with pytest.raises(InputError, match=f"{size} must be a whole number from 1 on, got"):
        marble.build(name, **sizes)


@pytest.mark.parametrize("name", [None, 1, ["abmil"], torch.nn.Linear(1, 1)])
def test_a_model_is_called_by_its_name(name: Any) -> None:
    with pytest.raises(InputError, match="a model is called by its name, got"):
        marble.build(name, dim=4, outputs=2)
