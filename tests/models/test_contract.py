"""What every model in MODELS promises, checked for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import get_type_hints

import pytest
import torch
from torch import Tensor

from marble.bags.augment import reorder
from marble.bags.bag import Bag
from marble.errors import BagError, InputError
from marble.models import COMMON, MODELS, build, model_class, model_options
from marble.models.base import BagModel
from marble.models.inference import infer
from marble.models.recipe import Recipe
from tests.models.contract import (
    DIM,
    classification_loss,
    evaluated,
    make_bag,
    make_model,
    same,
    survival_loss,
)

NAMES = list(MODELS)
SINGLE_SCALE = [name for name in NAMES if name not in ("marble", "probe", "hipt", "hagmil", "csmil", "zoommil")]
#: models whose scan is a raster: `forward` takes the tokens as they come, a prediction always in the order of cells
RASTER = ("s4mil", "mambamil", "srmambamil")

#: parameters whose gradient is zero by mathematics, not by mistake: a constant added before a softmax over tokens
BEFORE_SOFTMAX = ("score.bias",)

every_model = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 7, 65])
@every_model
def test_output(name: str, tokens: int, levels: int) -> None:
    model, bag = evaluated(name, levels, outputs=3), make_bag(tokens, levels)
    with torch.no_grad():
        out = model(bag)
    assert out.logits.shape == (3,)
    assert torch.isfinite(out.logits).all()
    assert out.embedding.ndim == 1
    assert torch.isfinite(out.embedding).all()
    assert 0 <= out.level < levels
    assert out.attention.shape == (len(bag.levels[out.level]),)
    assert (out.attention >= 0).all()
    assert float(out.attention.double().sum()) == pytest.approx(1, abs=1e-5)
    for side in out.side:
        assert side.logits.shape == (3,)
        assert torch.isfinite(side.logits).all()
        assert side.weight > 0


@every_model
def test_evaluation_is_repeatable(name: str) -> None:
    model, bag = evaluated(name, 2), make_bag(65, 2)
    with torch.no_grad():
        assert same(model(bag), model(bag))


@every_model
def test_state_dict_round_trip(name: str) -> None:
    model, other, bag = evaluated(name, 2), make_model(name, seed=1).eval(), make_bag(65, 2)
    with torch.no_grad():
        assert not torch.equal(other(bag).logits, model(bag).logits)
        other.load_state_dict(model.state_dict())
        assert same(other(bag), model(bag))


@every_model
def test_gradient_reaches_every_parameter(name: str) -> None:
    model = make_model(name, levels=3).train()
    torch.manual_seed(0)
    loss = classification_loss(model, [make_bag(65, 3, seed=seed) for seed in range(2)])
    torch.autograd.backward(loss)
    untouched = [key for key, p in model.named_parameters() if p.grad is None]
    zero = [
        key
        for key, p in model.named_parameters()
        if p.grad is not None and not p.grad.any() and not key.endswith(BEFORE_SOFTMAX)
    ]
    assert not untouched
    assert not zero
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(("task", "outputs"), [(classification_loss, 2), (survival_loss, 1)])
@every_model
def test_a_few_steps_lower_the_loss(name: str, task: Callable[[BagModel, Sequence[Bag]], Tensor], outputs: int) -> None:
    model = make_model(name, outputs=outputs).train()
    bags = [make_bag(30 - 9 * seed, 2, seed=seed, slide_id=f"s-{seed}") for seed in range(3)]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    losses = []
    for _ in range(3):
        torch.manual_seed(0)  # the same dropout every time, so that only the weights differ
        loss = task(model, bags)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@every_model
def test_augmented_bag_is_a_bag(name: str) -> None:
    bag = make_bag(30, 2)
    model = evaluated(name, 2)
    augmented = model.augment(bag, torch.Generator().manual_seed(0))
    again = model.augment(bag, torch.Generator().manual_seed(0))
    Bag(augmented.slide_id, augmented.levels)  # checks every rule
    assert all(torch.equal(a.features, b.features) for a, b in zip(augmented.levels, again.levels, strict=True))


def in_another_order(bag: Bag) -> tuple[Bag, list[Tensor]]:
    rng = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(level), generator=rng) for level in bag.levels]
    return reorder(bag, orders), orders


@pytest.mark.parametrize("name", [name for name in NAMES if name not in RASTER])
def test_order_matters_only_where_the_model_says_so(name: str) -> None:
    bag, model = make_bag(65, 2), make_model(name, seed=3).double().eval()
    other, orders = in_another_order(bag)
    with torch.no_grad():
        out, permuted = model(bag), model(other)
    if model.order_sensitive:
        assert not torch.allclose(permuted.logits, out.logits, rtol=1e-9, atol=1e-12)
    else:
        torch.testing.assert_close(permuted.logits, out.logits, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(permuted.attention, out.attention[orders[out.level]], rtol=1e-9, atol=1e-12)


@every_model
def test_prediction_is_the_same_for_any_stored_order(name: str) -> None:
    model, bag = evaluated(name, 2), make_bag(30, 2)
    first, second = (infer(model, stored, orders=2) for stored in (bag, in_another_order(bag)[0]))
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.attention, second.attention)
    assert torch.equal(first.cells, second.cells)


@every_model
def test_half_precision_bags(name: str) -> None:
    half = make_bag(30, 2, dtype=torch.float16)
    model = evaluated(name, 2)
    with torch.no_grad():
        out = model(half)
        assert out.logits.dtype == torch.float32
        assert same(out, model(half.to(dtype=torch.float32)))


@every_model
def test_wrong_width_is_refused_with_the_slide(name: str) -> None:
    with pytest.raises(BagError, match=rf"slide-7.*{DIM + 1} wide.*{DIM}"):
        evaluated(name, 2)(make_bag(7, 2, dim=DIM + 1, slide_id="slide-7"))


@pytest.mark.parametrize("name", SINGLE_SCALE)
def test_single_scale_models_read_the_level_they_are_told(name: str) -> None:
    bag = make_bag(65, 3)
    with torch.no_grad():
        finest, coarsest = make_model(name).eval()(bag), make_model(name, level=0).eval()(bag)
    assert (finest.level, coarsest.level) == (2, 0)
    assert len(coarsest.attention) == len(bag.levels[0])
    with torch.no_grad():
        alone = make_model(name).eval()(Bag("alone", bag.levels[:1]))
    assert torch.equal(alone.logits, coarsest.logits)
    with pytest.raises(BagError, match=r"s-1.*level 3"):
        make_model(name, level=3)(bag)


@every_model
def test_options_have_defaults_and_strangers_are_refused(name: str) -> None:
    options = model_options(name)
    assert build(name, DIM, 2, **options).parameter_count() > 0
    with pytest.raises(InputError, match=f"option of model '{name}' 'surprise'"):
        build(name, DIM, 2, surprise=1)


@every_model
def test_authors_recipe(name: str) -> None:
    recipe = model_class(name).authors_recipe
    assert isinstance(recipe, Recipe)
    assert name in ("marble", "probe", "tiles") or recipe != COMMON  # theirs is the common one, or none at all


@every_model
def test_optimizer_groups_hold_every_parameter_once(name: str) -> None:
    model = evaluated(name, 2)
    grouped = [key for group in model.optimizer_groups() for key, _ in group]
    assert sorted(grouped) == sorted(key for key, _ in model.named_parameters())
    by_name = dict(model.named_parameters())
    assert all(parameter is by_name[key] for group in model.optimizer_groups() for key, parameter in group)


@every_model
def test_sizes_and_rates_out_of_range_are_refused_by_name(name: str) -> None:
    for key in model_options(name):
        hint = get_type_hints(model_class(name).__init__)[key]
        wrong: list[object] = []
        if hint in (int, int | None) and key != "level":  # -1 is the last level
            wrong = [-7, True]
        elif hint is float:
            wrong = [math.nan, math.inf, -0.5]
        for value in wrong:
            with pytest.raises(InputError, match=key):
                build(name, 16, 2, **{key: value})


@every_model
def test_it_is_built_without_memory(name: str) -> None:
    """As an experiment does to learn whether its options fit."""
    with torch.device("meta"):
        assert build(name, 16, 2).device.type == "meta"
