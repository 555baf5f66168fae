"""Maps against brute force, and every model of the zoo explained."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.attribution import attention_by_level, branch_occlusion, deletion_insertion, gradient_times_input, lift
from marble.attribution.scores import logit, score_of
from marble.bags.augment import canonical, shuffled
from marble.bags.bag import Bag, Level
from marble.errors import InputError
from marble.models import MODELS, build
from marble.models.inference import infer
from marble.models.statistics import measure
from marble.tasks.classification import Classification
from marble.tasks.survival import Survival
from tests.bags.making import random_bag
from tests.models.contract import evaluated, make_bag


@given(st.integers(1, 9), st.sampled_from([(), (2,), (4,), (2, 3)]))
@settings(max_examples=25, deadline=None)
def test_lifting_takes_the_highest_of_all_descendants(coarse: int, ratios: tuple[int, ...]) -> None:
    bag = random_bag(f"s{coarse}", coarse, ratios)
    values = torch.rand(len(bag.finest), dtype=torch.float64)
    found = lift(bag, values, bag.depth - 1)
    for k, level in enumerate(bag.levels):
        scale = prod(finer.ratio or 1 for finer in bag.levels[k + 1 :])
        for cell, value in zip(level.cells.tolist(), found[k].tolist(), strict=True):
            inside = [v for c, v in zip(bag.finest.cells.tolist(), values.tolist(), strict=True)
                      if [c[0] // scale, c[1] // scale] == cell]  # fmt: skip
            assert value == max(inside, default=0.0)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_has_attention_at_every_level_and_a_gradient(name: str) -> None:
    model, bag = evaluated(name, 2), make_bag(40, 2)
    prediction = infer(model, bag, 2)
    maps = attention_by_level(bag, prediction)
    assert len(maps) == prediction.level + 1
    for k, values in enumerate(maps):
        assert values.shape == (len(bag.levels[k]),)
    assert float(maps[-1].sum()) == pytest.approx(1.0, abs=1e-5)
    one, other = (gradient_times_input(model, bag, logit(i)) for i in (0, 1))
    assert [len(values) for values in one] == [len(level) for level in bag.levels]
    if name == "tiles":  # which counts tiles and never looks at a token
        assert not any(bool(values.any()) for values in (*one, *other))
    else:
        assert not torch.equal(one[0], other[0])  # it tells the classes apart
    assert all(bool(torch.isfinite(values).all()) for values in (*one, *other))


@pytest.mark.parametrize("name", ["marble", "abmil", "hipt"])
def test_maps_follow_the_stored_order(name: str) -> None:
    model, bag = evaluated(name, 2), canonical(make_bag(30, 2))
    mixed = shuffled(bag, torch.Generator().manual_seed(3))
    for bags in ((bag, mixed),):
        attention = [attention_by_level(one, infer(model, one, 1)) for one in bags]
        gradient = [gradient_times_input(model, one, logit(1)) for one in bags]
    for k in range(2):
        place = {tuple(cell): i for i, cell in enumerate(bag.levels[k].cells.tolist())}
        back = torch.tensor([place[tuple(cell)] for cell in mixed.levels[k].cells.tolist()])
        torch.testing.assert_close(attention[1][k], attention[0][k][back], rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient[1][k], gradient[0][k][back], rtol=1e-12, atol=1e-15)


def test_attention_of_another_bag_is_refused() -> None:
    model = evaluated("abmil", 2)
    with pytest.raises(InputError, match="another bag"):
        attention_by_level(make_bag(30, 2, seed=1), infer(model, make_bag(30, 2, seed=2)))


def test_a_model_of_the_coarse_level_shows_nothing_finer() -> None:
    model = build("abmil", 32, 2, level=0).eval()
    bag = make_bag(30, 2)
    maps = attention_by_level(bag, infer(model, bag))
    assert [len(values) for values in maps] == [len(bag.levels[0])]


def test_gradient_of_a_standardised_model_is_times_what_it_reads() -> None:
    """The same model over tokens that were standardised beforehand gives the same map."""
    model, bag = build("mean", 32, 2).double().eval(), make_bag(30, 2)
    plain = bag.with_levels([replace(level, features=level.features.double()) for level in bag.levels])
    moments = measure([plain])
    before = plain.with_levels(
        [
            replace(level, features=(level.features - one.mean) * one.scale())
            for level, one in zip(plain.levels, moments, strict=True)
        ]
    )
    expected = gradient_times_input(model, before, logit(1))
    model.inputs.set(moments, next(model.parameters()))
    for found, wanted in zip(gradient_times_input(model, plain, logit(1)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-13)


def test_gradient_of_a_linear_model_adds_up_to_the_logit() -> None:
    model = build("mean", 32, 2).double().eval()
    bag = make_bag(25, 3, dtype=torch.float64)
    found = gradient_times_input(model, bag, logit(1))
    zeros = bag.with_levels([replace(level, features=torch.zeros_like(level.features)) for level in bag.levels])
    whole, empty = (float(model(one).logits[1].detach()) for one in (bag, zeros))
    for values in found:
        assert float(values.sum()) == pytest.approx(whole - empty, rel=1e-9)


@pytest.mark.parametrize("level", [0, 1])
def test_occlusion_is_the_change_when_tiles_and_descendants_go(level: int) -> None:
    model, bag = build("abmil", 32, 2).double().eval(), make_bag(12, 2, dtype=torch.float64)
    found = branch_occlusion(model, bag, logit(1), level=level)
    whole = float(model(canonical(bag)).logits[1].detach())
    for tile, value in enumerate(found.tolist()):
        stays = [i for i in range(len(bag.finest)) if _ancestor(bag, i, level) != tile]
        coarse = [i for i in range(len(bag.levels[0])) if level != 0 or i != tile]
        rest = Bag("rest", [
            Level(bag.levels[0].features[coarse], bag.levels[0].cells[coarse]),
            Level(bag.finest.features[stays], bag.finest.cells[stays],
                  torch.tensor([coarse.index(_ancestor(bag, i, 0)) for i in stays]), bag.finest.ratio),
        ])  # fmt: skip
        assert value == pytest.approx(whole - float(model(canonical(rest)).logits[1].detach()), abs=1e-12)


def _ancestor(bag: Bag, fine: int, level: int) -> int:
    assert bag.finest.parent is not None
    return fine if level == 1 else int(bag.finest.parent[fine])


def test_occlusion_of_the_only_tile_is_refused() -> None:
    bag = Bag("one", [Level(torch.randn(1, 32), torch.tensor([[0, 0]]))])
    with pytest.raises(InputError, match="cannot be dropped"):
        branch_occlusion(evaluated("mean", 1), bag, logit(0))


@pytest.mark.parametrize("name", ["marble", "max", "hagmil", "csmil", "zoommil"])
def test_occlusion_works_for_models_of_several_levels(name: str) -> None:
    found = branch_occlusion(evaluated(name, 2), make_bag(20, 2), logit(0))
    assert bool(torch.isfinite(found).all())


def test_curves_tell_a_true_map_from_its_opposite() -> None:
    model, bag = build("mean", 32, 2).double().eval(), make_bag(60, 2, dtype=torch.float64)
    true = gradient_times_input(model, bag, logit(1))[-1]
    right = deletion_insertion(model, bag, true, logit(1), steps=12)
    wrong = deletion_insertion(model, bag, -true, logit(1), steps=12)
    assert right.deletion_area < wrong.deletion_area
    assert right.insertion_area > wrong.insertion_area
    whole = float(model(canonical(bag)).logits[1].detach())
    assert right.deletion[0] == pytest.approx(whole)
    assert right.insertion[-1] == pytest.approx(whole)
    assert (right.removed[0], right.present[-1]) == (0, 1)
    # one step by hand: the first five tiles gone
    keep = torch.ones(60, dtype=torch.bool)
    keep[torch.argsort(true, descending=True)[:5]] = False
    left = Level(bag.finest.features[keep], bag.finest.cells[keep])
    by_hand = float(model(Bag("left", [left])).logits[1].detach())
    assert right.deletion[1] == pytest.approx(by_hand, abs=1e-9)


def test_curves_refuse_values_of_another_level() -> None:
    bag = make_bag(20, 2)
    with pytest.raises(InputError, match=r"values must be \(20,\)"):
        deletion_insertion(evaluated("mean", 2), bag, torch.zeros(len(bag.levels[0])), logit(0))


def test_scores_of_tasks() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=torch.float64)
    assert score_of(Classification(("a", "b", "c", "d")), "c").of(logits) == 2.0
    assert score_of(Survival()).of(logits[:1]) == logits[0]
    run = {"origin": 2.5}
    assert float(score_of(Survival(), calibration=run).of(logits[:1])) == Survival().readout(logits[:1], run)["risk"]
    discrete = Survival(loss="nll", bins=4)
    assert float(score_of(discrete).of(logits)) == pytest.approx(discrete.readout(logits)["risk"], abs=1e-12)
    with pytest.raises(InputError, match="class"):
        score_of(Classification(("a", "b")), "z")
    with pytest.raises(InputError, match="name the class"):
        score_of(Classification(("a", "b")))
    with pytest.raises(InputError, match="risk"):
        score_of(Survival(), "a")
