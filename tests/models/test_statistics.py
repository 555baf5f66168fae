"""Input statistics: exact, independent of the stored order, kept with the weights, honoured by every model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from marble.bags.augment import generator, shuffled
from marble.bags.bag import Bag
from marble.errors import BagError
from marble.models import MODELS
from marble.models.statistics import CHUNK, LEAST, Moments, measure
from tests.models.contract import DIM, make_bag, make_model, same


def bags(count: int = 3, levels: int = 2) -> list[Bag]:
    """Bags whose features have a common offset a hundred times their spread."""
    return [
        bag.with_levels([replace(x, features=x.features * (k + 0.5) + 100 * (k + 1)) for k, x in enumerate(bag.levels)])
        for bag in (make_bag(20 + 9 * i, levels, seed=i, slide_id=f"s-{i}") for i in range(count))
    ]


def test_moments_are_those_of_all_tokens_at_once() -> None:
    for k, moments in enumerate(measure(bags())):
        tokens = np.concatenate([bag.levels[k].features.double().numpy() for bag in bags()])
        np.testing.assert_allclose(moments.mean.numpy(), tokens.mean(axis=0), rtol=1e-14)
        np.testing.assert_allclose(moments.scale().numpy(), 1 / tokens.std(axis=0), rtol=1e-12)
        assert moments.count == len(tokens)


def test_a_long_level_is_added_in_chunks() -> None:
    rng = torch.Generator().manual_seed(0)
    tokens = (torch.randn(2 * CHUNK + 17, 3, generator=rng) + 1e3).half()
    moments = Moments.empty(3)
    moments.add(tokens)
    np.testing.assert_allclose(moments.mean.numpy(), tokens.double().mean(dim=0).numpy(), rtol=1e-14)
    np.testing.assert_allclose(1 / moments.scale().numpy(), tokens.double().numpy().std(axis=0), rtol=1e-11)


def test_the_stored_order_of_tiles_changes_no_bit() -> None:
    once, again = measure(bags()), measure([shuffled(bag, generator(bag.slide_id)) for bag in bags()])
    for a, b in zip(once, again, strict=True):
        assert torch.equal(a.mean, b.mean)
        assert torch.equal(a.squares, b.squares)


@pytest.mark.parametrize("value", [0.0, 0.1, -7e4])
def test_a_constant_feature_is_not_blown_up(value: float) -> None:
    tokens = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double()
    tokens[:, 1] = value
    moments = Moments.empty(4)
    moments.add(tokens)
    typical = np.sqrt((tokens[:, [0, 2, 3]].numpy().var(axis=0)).sum() / 4)
    np.testing.assert_allclose(moments.scale()[1].item(), 1 / (LEAST * typical), rtol=1e-12)
    np.testing.assert_allclose(moments.scale()[[0, 2, 3]].numpy(), 1 / tokens[:, [0, 2, 3]].numpy().std(axis=0))


def test_features_that_all_never_change_are_only_centred() -> None:
    moments = Moments.empty(3)
    moments.add(torch.tensor([[0.0, 0.1, -7e4]]).expand(9, 3))
    assert moments.scale().tolist() == [1, 1, 1]


def test_a_feature_that_is_silent_in_training_does_not_rule_a_new_slide() -> None:
    """One of many features speaks once among ten thousand training tiles, and on a whole new slide."""
    rng = torch.Generator().manual_seed(0)
    seen, new = torch.randn(10_000, 64, generator=rng), torch.randn(100, 64, generator=rng)
    seen[:, 0], new[:, 0] = 0.0, 0.5
    seen[17, 0] = 1e-3
    moments = Moments.empty(64)
    moments.add(seen)
    tokens = (new.double() - moments.mean) * moments.scale()
    assert tokens[:, 0].abs().max() < 60  # its own SD is a hundred-thousandth: 50,000 without a floor
    assert tokens[:, 1:].abs().max() < 6


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_sees_standardised_tokens(name: str) -> None:
    """A standardised model on raw bags is the plain model on bags that were standardised by hand."""
    bag, moments = bags()[0], measure(bags())
    plain, model = make_model(name).double().eval(), make_model(name).double().eval()
    model.standardise(moments)
    by_hand = bag.with_levels(
        [
            replace(level, features=(level.features.double() - one.mean) * one.scale())
            for level, one in zip(bag.levels, moments, strict=True)
        ]
    )
    with torch.no_grad():
        torch.testing.assert_close(model(bag).logits, plain(by_hand).logits, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["marble", "abmil"])
def test_statistics_travel_with_the_weights(name: str) -> None:
    model = make_model(name).eval()
    bare = set(model.state_dict())
    model.standardise(measure(bags()))
    assert set(model.state_dict()) - bare == {"inputs.mean", "inputs.scale"}
    other = make_model(name, seed=1).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert same(other(bags()[0]), model(bags()[0]))
    with pytest.raises(RuntimeError, match=r"Missing key.*inputs\.mean"):
        other.load_state_dict(make_model(name).state_dict())


def test_bags_of_another_shape_are_refused() -> None:
    with pytest.raises(BagError, match="s-1: the bag has 3 levels, the ones before it 2"):
        measure([bags()[0], make_bag(9, 3)])
    with pytest.raises(BagError, match="s-1: tokens are 33 wide, those of the bags before it 32"):
        measure([bags()[0], make_bag(9, 2, dim=DIM + 1)])
    model = make_model("mean")
    model.standardise(measure(bags()))
    deep = make_bag(9, 3)
    with pytest.raises(BagError, match="standardised on bags of 2 levels and is asked for level 2"):
        model(deep)
