"""The linear term: what it adds, of which levels, and that it is kept with the weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from marble.bags.augment import generator, shuffled
from marble.bags.bag import Bag
from marble.models import MODELS, model_class
from marble.models.base import BagModel
from marble.models.zoo.probe import ClosedForm
from tests.models.contract import DIM, make_bag, make_model

TRAINED = [name for name in MODELS if not issubclass(model_class(name), ClosedForm)]


def give_term(model: BagModel, levels: int, share: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    weight, bias = rng.normal(size=(model.outputs, levels * DIM)), rng.normal(size=model.outputs)
    like = next(model.parameters()).detach()
    model.linear_term.set(torch.from_numpy(weight), torch.from_numpy(bias), share, like)
    return weight, bias


def means(bag: Bag) -> list[np.ndarray]:
    return [level.features.double().numpy().mean(axis=0) for level in bag.levels]


@pytest.mark.parametrize("name", TRAINED)
def test_it_adds_a_linear_map_of_the_mean_tokens_of_the_levels_that_the_model_reads(name: str) -> None:
    bag = make_bag(70, 2)
    model = make_model(name).eval()
    alone = model(bag)
    read = len(model.levels_read(bag))
    assert read == (2 if hasattr(model, "levels") else 1)
    weight, bias = give_term(model, read)
    torch.manual_seed(0)  # of models that draw tiles also in evaluation
    beside = model(bag)
    v = np.concatenate(means(bag)[-read:])
    np.testing.assert_allclose((beside.logits - alone.logits).detach().numpy(), weight @ v + bias, rtol=1e-4, atol=1e-4)
    assert torch.equal(beside.attention, alone.attention)


@pytest.mark.parametrize(("level", "shown"), [(-1, 1), (0, 0)])
def test_a_model_of_one_level_has_a_term_of_that_level_alone(level: int, shown: int) -> None:
    bag = make_bag(50, 2)
    model = make_model("abmil", level=level).eval()
    alone = model(bag).logits
    weight, bias = give_term(model, 1)
    np.testing.assert_allclose(
        (model(bag).logits - alone).detach().numpy(), weight @ means(bag)[shown] + bias, rtol=1e-4, atol=1e-4
    )


def test_no_order_of_the_tiles_changes_a_bit() -> None:
    bag = make_bag(300, 2)
    model = make_model("marble", mixer="set", project=8).eval()
    give_term(model, 2)
    expected = model(bag).logits
    for k in range(20):
        assert torch.equal(model(shuffled(bag, generator(k))).logits, expected)


def test_a_prediction_takes_a_share_of_the_network_and_training_all_of_it() -> None:
    bag = make_bag(60, 2)
    model = make_model("marble", shuffle=False, drop_rate=0.0)
    alone = model(bag).logits.detach().double().numpy()
    weight, bias = give_term(model, 2, share=0.3)
    term = weight @ np.concatenate(means(bag)) + bias
    np.testing.assert_allclose(model.train()(bag).logits.detach().numpy(), alone + term, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.eval()(bag).logits.detach().numpy(), 0.3 * alone + term, rtol=1e-4, atol=1e-4)


def test_it_is_kept_with_the_weights() -> None:
    bag = make_bag(40, 2)
    model = make_model("marble").eval()
    give_term(model, 2)
    again = make_model("marble", seed=5).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(bag).logits, model(bag).logits)
    assert not any(name.startswith("linear_term") for name, _ in model.named_parameters())


def test_what_a_token_adds_reaches_explanations() -> None:
    bag = make_bag(30, 2)
    model = make_model("marble").eval()
    model.start_beside_linear_term()
    weight, _ = give_term(model, 2)
    inputs = [level.features.clone().requires_grad_() for level in bag.levels]
    watched = bag.with_levels([replace(level, features=x) for level, x in zip(bag.levels, inputs, strict=True)])
    gradients = torch.autograd.grad(model(watched).logits[1], inputs)
    for k, (x, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        expected = np.tile(weight[1, k * DIM : (k + 1) * DIM] / len(x), (len(x), 1))
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scales", ["cat", "fusion"])
def test_a_model_that_joins_parents_has_a_term_of_both_levels(scales: str) -> None:
    bag = make_bag(50, 2)
    model = make_model("dsmil", scales=scales).eval()
    alone = model(bag).logits
    weight, bias = give_term(model, 2)
    v = np.concatenate(means(bag))
    np.testing.assert_allclose((model(bag).logits - alone).detach().numpy(), weight @ v + bias, rtol=1e-4, atol=1e-4)
