"""MARBLE's fast forward equals its equations; its options, controls and refusals do what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from marble.bags.augment import canonical, generator, reorder, shuffled
from marble.bags.bag import Bag, Level
from marble.errors import BagError, InputError
from marble.models import build
from marble.models.base import Output, decay_groups
from marble.models.statistics import measure
from marble.models.zoo import marble_fast
from marble.models.zoo.marble import Marble, wrong_parents

DIM = 8
SMALL: dict[str, Any] = {"d_state": 6, "headdim": 4}


def nested_bag(T: int, depth: int, dim: int = DIM, seed: int = 0, dtype: torch.dtype = torch.float64) -> Bag:
    """A bag of `depth` levels at ratio 4 whose finest level has T tokens, in a random stored order."""
    rng = torch.Generator().manual_seed(seed)
    side = 4 * int(T**0.5 + 4)
    fine = torch.randperm(side * side, generator=rng)[:T]
    cells = torch.stack([fine // side, fine % side], dim=1)
    chain = [cells]
    for _ in range(depth - 1):
        coarse = torch.unique(chain[0] // 4, dim=0)
        chain.insert(0, coarse[torch.randperm(len(coarse), generator=rng)])
    levels = []
    for k, cells in enumerate(chain):
        features = torch.randn(len(cells), dim, generator=rng, dtype=torch.float64).to(dtype)
        parent = None
        if k > 0:
            parent = (chain[k - 1][None] == (cells // 4)[:, None]).all(-1).to(torch.int64).argmax(1)
        levels.append(Level(features, cells, parent))
    return Bag(f"slide-{seed}", levels)


def shaken(seed: int = 0, **options: Any) -> Marble:
    torch.manual_seed(seed)
    model = build("marble", DIM, options.pop("outputs", 3), **(SMALL | options)).double()
    assert isinstance(model, Marble)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def everything(model: Marble, bag: Bag, as_written: bool) -> dict[str, Tensor]:
    """Outputs, and gradients of all parameters and features, for a loss in which every output takes part."""
    model.zero_grad(set_to_none=True)
    inputs = [level.features.clone().requires_grad_() for level in bag.levels]
    live = bag.with_levels([replace(level, features=x) for level, x in zip(bag.levels, inputs)])
    out: Output = model.forward_as_written(live) if as_written else model(live)
    wave = torch.linspace(0, 9, len(out.attention), dtype=torch.float64).sin()
    loss = out.logits.square().sum() + out.embedding.sin().sum() + (out.attention * wave).sum()
    torch.autograd.backward(loss)
    found = {"logits": out.logits, "embedding": out.embedding, "attention": out.attention}
    found |= {f"d features {k}": x.grad for k, x in enumerate(inputs) if x.grad is not None}
    found |= {f"d {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: tensor.detach() for name, tensor in found.items()}


def assert_equal_to_the_equations(model: Marble, bag: Bag) -> None:
    fast, slow = everything(model, bag, as_written=False), everything(model, bag, as_written=True)
    assert fast.keys() == slow.keys()
    assert sum(name.startswith("d ") for name in slow) == len(list(model.parameters())) + len(model.mixers)
    for name, truth in slow.items():
        limit = (1e-10 if name.startswith("d ") else 1e-12) * truth.abs().max() + 1e-14  # one token: true zeros
        assert (fast[name] - truth).abs().max() <= limit, name


@pytest.mark.parametrize("composed", [True, False])
@pytest.mark.parametrize("T", [1, 7, 65, 257, 1000])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_literal_forward_is_the_equations(monkeypatch: pytest.MonkeyPatch, depth: int, T: int, composed: bool) -> None:
    monkeypatch.setattr("marble.models.zoo.marble.composing_pays", lambda *_: composed)
    assert_equal_to_the_equations(shaken(levels=depth), nested_bag(T, depth))


@pytest.mark.parametrize("T", [1, 7, 65, 257, 1000])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_prenorm_forward_is_the_equations(depth: int, T: int) -> None:
    assert_equal_to_the_equations(shaken(levels=depth, block="prenorm"), nested_bag(T, depth))


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 2},
        {"depth": 3, "block": "prenorm"},
        {"fusion": "shuffled"},
        {"mixer": "mlp"},
        {"mixer": "mlp", "block": "prenorm", "depth": 2},
        {"outputs": 1},
        {"project": 6},
        {"project": 6, "block": "prenorm", "readout": "all", "start": "fine"},
        {"readout": "all"},
        {"readout": "all", "depth": 2, "block": "prenorm"},
        {"start": "fine"},
        {"start": "even"},
        {"start": "residual", "mixer": "set"},
        {"mixer": "set"},
        {"mixer": "set", "block": "prenorm", "depth": 2},
        {"mixer": "set", "project": 6, "readout": "all"},
        {"order": "raster"},
        {"order": "hilbert", "block": "prenorm"},
        {"order": ["raster", "coarse-attention"]},
        {"order": "coarse-attention", "block": "prenorm", "depth": 2},
        {"order": "learned"},
        {"order": ["shuffle", "learned"], "block": "prenorm"},
        {"directions": 2},
        {"order": ["hilbert", "coarse-attention"], "directions": 2, "block": "prenorm", "depth": 2},
    ],
)
def test_options_keep_both_forms_equal(options: dict[str, Any]) -> None:
    assert_equal_to_the_equations(shaken(**options), nested_bag(300, 2))


def standardised(model: Marble, depth: int) -> Marble:
    """With the statistics of bags whose features have means and scales far from 0 and 1."""
    model.standardise(measure([uneven(nested_bag(90, depth, seed=seed)) for seed in (5, 6)]))
    return model


def uneven(bag: Bag) -> Bag:
    spread = torch.linspace(0.2, 3, bag.finest.dim, dtype=torch.float64)
    return bag.with_levels(
        [
            replace(level, features=level.features * spread + (k + 1) * spread.flip(0))
            for k, level in enumerate(bag.levels)
        ]
    )


@pytest.mark.parametrize("composed", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"block": "prenorm"}, {"project": 6}, {"project": 6, "block": "prenorm"}, {"readout": "all"}, {"levels": 1},
     {"levels": 1, "level": 0}, {"fusion": "none"}, {"levels": 3}, {"mixer": "set"}, {"mixer": "set", "project": 6}],
)  # fmt: skip
def test_folded_statistics_are_the_explicit_ones(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], composed: bool
) -> None:
    """`forward` folds them into the first map, `forward_as_written` applies them to the tokens; gradients too."""
    monkeypatch.setattr("marble.models.zoo.marble.composing_pays", lambda *_: composed)
    depth = max(2, options.get("levels", 2))
    model, bag = standardised(shaken(**options), depth), uneven(nested_bag(300, depth))
    assert_equal_to_the_equations(model, bag)
    bare = shaken(**options)
    assert (bare(bag).logits - model(bag).logits).abs().max() > 1e-3


def test_folded_statistics_are_standardised_tokens() -> None:
    model, plain, bag = standardised(shaken(), 2), shaken(), uneven(nested_bag(80, 2))
    mean, scale = model.inputs.mean, model.inputs.scale
    assert mean is not None
    assert scale is not None
    by_hand = bag.with_levels(
        [replace(level, features=(level.features - mean[k]) * scale[k]) for k, level in enumerate(bag.levels)]
    )
    torch.testing.assert_close(model(bag).logits, plain(by_hand).logits, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"dropout": 0.5, "project": 6}, {"dropout": 0.5, "levels": 1}])
def test_dropout_is_the_same_in_both_forms_and_absent_from_evaluation(options: dict[str, Any]) -> None:
    model, bag = standardised(shaken(**options), 2).train(), uneven(nested_bag(60, 2))
    torch.manual_seed(1)
    fast = model(bag).logits
    torch.manual_seed(1)
    torch.testing.assert_close(model.forward_as_written(bag).logits, fast, rtol=1e-11, atol=1e-11)
    without = standardised(shaken(**(options | {"dropout": 0.0})), 2)
    assert not torch.allclose(fast, without(bag).logits)
    torch.testing.assert_close(model.eval()(bag).logits, without(bag).logits, rtol=1e-12, atol=1e-12)


def test_noise_is_of_the_asked_size_in_training_and_absent_from_evaluation() -> None:
    model, bag = standardised(shaken(noise=0.5, drop_rate=0.0, shuffle=False), 2), uneven(nested_bag(4000, 2))
    noisy = model.augment(bag, generator(0, "noise"))
    assert model.inputs.scale is not None
    for k, (level, heard) in enumerate(zip(bag.levels, noisy.levels, strict=True)):
        added = (heard.features - level.features) * model.inputs.scale[k]  # in SDs of the feature
        assert added.mean().abs() < 0.02
        assert abs(added.std() - 0.5) < 0.02
        assert torch.equal(level.cells, heard.cells)
    assert torch.equal(noisy.levels[1].features, model.augment(bag, generator(0, "noise")).levels[1].features)
    without = standardised(shaken(drop_rate=0.0, shuffle=False), 2)
    assert torch.equal(model(bag).logits, without(bag).logits)
    raw = shaken(noise=0.5, drop_rate=0.0, shuffle=False)  # without statistics, in the tokens' own unit
    added = raw.augment(bag, generator(0, "noise")).levels[1].features - bag.levels[1].features
    assert abs(added.std() - 0.5) < 0.02


def test_a_fine_start_pools_fine_tokens_evenly_and_sees_no_parent() -> None:
    model = build("marble", DIM, 2, **SMALL, start="fine", mixer="mlp", block="prenorm").double()
    bag = nested_bag(40, 2)
    moved = bag.with_levels([replace(bag.levels[0], features=bag.levels[0].features + 5), bag.levels[1]])
    out = model(bag)
    torch.testing.assert_close(out.attention, torch.full((40,), 1 / 40, dtype=torch.float64))
    assert torch.equal(out.logits, model(moved).logits)
    torch.autograd.backward(model(bag).logits[0])
    phi = model.get_parameter("phi.0.weight").grad
    assert phi is not None
    assert phi[:, DIM:].abs().max() > 1e-6  # what the parents say can be learned from the first step on


@pytest.mark.parametrize("start", ["even", "residual"])
def test_an_even_start_sees_the_parents_and_pools_evenly(start: str) -> None:
    model = build("marble", DIM, 2, **SMALL, start=start, mixer="mlp", block="prenorm").double()
    bag = nested_bag(40, 2)
    moved = bag.with_levels([replace(bag.levels[0], features=bag.levels[0].features + 5), bag.levels[1]])
    torch.testing.assert_close(model(bag).attention, torch.full((40,), 1 / 40, dtype=torch.float64))
    assert not torch.allclose(model(bag).logits, model(moved).logits)
    fine_half = model.get_parameter("phi.0.weight")[:, :DIM]
    assert torch.equal(fine_half, torch.eye(DIM, dtype=torch.float64)) == (start == "residual")


def test_every_level_is_read_out() -> None:
    model, bag = shaken(readout="all", levels=3), nested_bag(90, 3)
    assert model(bag).embedding.shape == (3 * DIM,)
    assert model(bag).attention.shape == (90,)
    only_finest = shaken(readout="all", fusion="none")
    assert only_finest(nested_bag(40, 2)).embedding.shape == (DIM,)


def test_reference_backend_gives_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, bag = shaken(), nested_bag(70, 2)
    fast = model(bag).logits
    monkeypatch.setenv("MARBLE_SSD_BACKEND", "reference")
    torch.testing.assert_close(model(bag).logits, fast, rtol=1e-12, atol=1e-12)


def test_composition_is_chosen_by_cost() -> None:
    pays = marble_fast.composing_pays
    assert pays(8192, 512, 1024, 4384, training=True)
    assert pays(32768, 2048, 1024, 4384, training=False)
    assert not pays(1000, 62, 1024, 4384, training=True)
    assert not pays(4000, 250, 1024, 4384, training=False)


def test_half_precision_features_need_no_copy_in_full_precision() -> None:
    model = shaken().float()
    bag = nested_bag(700, 2, dtype=torch.float16)
    assert torch.equal(model(bag).logits, model(bag.to(dtype=torch.float32)).logits)


def test_evaluation_repeats_bit_for_bit() -> None:
    model, bag = shaken().float().eval(), nested_bag(700, 2, dtype=torch.float32)
    with torch.no_grad():
        first, second = model(bag), model(bag)
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.attention, second.attention)


def test_output_keeps_the_contract() -> None:
    out = shaken()(nested_bag(50, 2))
    assert out.logits.shape == (3,)
    assert out.embedding.shape == (DIM,)
    assert out.level == 1
    assert out.attention.shape == (50,)
    assert (out.attention >= 0).all()
    torch.testing.assert_close(out.attention.sum(), torch.ones((), dtype=torch.float64))


def test_parameter_count_is_the_papers() -> None:
    scan = build("marble", 1024, 2).parameter_count()
    control = build("marble", 1024, 2, mixer="mlp").parameter_count()
    assert scan == 15_301_314
    assert abs(control - scan) <= 3 * 1024  # half a hidden unit per block is the nearest integers allow


def test_weight_decay_spares_the_scan_norms_and_biases_and_nothing_else() -> None:
    model = shaken(block="prenorm")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, spared = decay_groups(model, 0.01)
    ends = {names[id(p)].rsplit(".", 1)[-1] for p in spared["params"]}
    assert ends == {"A_log", "D", "dt_bias", "bias", "weight"}
    weights = [names[id(p)] for p in spared["params"] if names[id(p)].endswith(".weight")]
    assert weights
    assert all("norm" in name for name in weights)
    assert not any("norm" in names[id(p)] for p in decayed["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


# ---- controls ------------------------------------------------------------------------------------------------------


def test_true_parents_matter_and_wrong_parents_do_not_follow_the_stored_order() -> None:
    bag = nested_bag(120, 2)
    cells, parent = bag.levels[0].cells, bag.levels[1].parent
    assert parent is not None
    wrong = wrong_parents(bag.slide_id, cells, parent, 1)
    assert (wrong != parent).float().mean() > 0.5
    assert len(torch.unique(wrong)) == len(torch.unique(parent))  # siblings stay together
    moved = shuffled(bag, generator(5))
    moved_parent = moved.levels[1].parent
    assert moved_parent is not None
    again = wrong_parents(moved.slide_id, moved.levels[0].cells, moved_parent, 1)
    where = {tuple(cell): tuple(above) for cell, above in zip(bag.levels[1].cells.tolist(), cells[wrong].tolist())}
    there = zip(moved.levels[1].cells.tolist(), moved.levels[0].cells[again].tolist())
    assert all(where[tuple(cell)] == tuple(above) for cell, above in there)
    assert not torch.allclose(shaken(fusion="parent")(bag).logits, shaken(fusion="shuffled")(bag).logits, rtol=1e-3)


def test_without_fusion_the_coarse_level_is_ignored() -> None:
    model, bag = shaken(fusion="none"), nested_bag(40, 2)
    changed = bag.with_levels([replace(bag.levels[0], features=bag.levels[0].features + 1), bag.levels[1]])
    assert torch.equal(model(bag).logits, model(changed).logits)
    assert not torch.equal(shaken()(bag).logits, shaken()(changed).logits)


@pytest.mark.parametrize("level", [0, 1, -1, -2])
def test_one_level_model_reads_only_its_level(level: int) -> None:
    bag = nested_bag(40, 2)
    model = shaken(levels=1, level=level)
    out = model(bag)
    k = level % 2
    assert out.level == k
    alone = Bag("alone", [replace(bag.levels[k], parent=None)])
    assert torch.equal(shaken(levels=1)(alone).logits, out.logits)


def test_scan_depends_on_the_order_and_the_control_does_not() -> None:
    bag = canonical(nested_bag(90, 2))
    flipped = reorder(bag, [torch.arange(len(level)).flip(0) for level in bag.levels])
    scan, control = shaken(), shaken(mixer="mlp")
    assert scan.order_sensitive
    assert not control.order_sensitive
    assert Marble.order_sensitive
    torch.testing.assert_close(control(bag).logits, control(flipped).logits, rtol=1e-12, atol=1e-12)
    assert (scan(bag).logits - scan(flipped).logits).abs().max() > 1e-4


def test_fusion_follows_the_parents_whatever_the_coarse_order() -> None:
    """With a mixer that ignores order, permuting the coarse level and relabelling the parents changes nothing."""
    bag, model = nested_bag(60, 3), shaken(levels=3, mixer="mlp")
    order = [torch.randperm(len(level)) for level in bag.levels[:-1]] + [torch.arange(60)]
    torch.testing.assert_close(model(bag).attention, model(reorder(bag, order)).attention, rtol=1e-12, atol=1e-12)


def test_augment_drops_branches_and_shuffles() -> None:
    bag = nested_bag(400, 2)
    model = shaken(drop_rate=0.5)
    first = model.augment(bag, generator(0, 0, bag.slide_id, "augment"))
    again = model.augment(bag, generator(0, 0, bag.slide_id, "augment"))
    assert torch.equal(first.finest.cells, again.finest.cells)
    assert abs(len(first.levels[0]) - len(bag.levels[0]) / 2) <= 1
    Bag(first.slide_id, first.levels)  # still keeps every rule
    still = shaken(drop_rate=0.0, shuffle=False).augment(bag, generator(1))
    assert torch.equal(still.finest.cells, bag.finest.cells)
    moved = shaken(drop_rate=0.0).augment(bag, generator(1))
    assert not torch.equal(moved.finest.cells, bag.finest.cells)


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": "postnorm"}, "unknown block 'postnorm'.*literal, prenorm"),
        ({"mixer": "mamba"}, "unknown mixer 'mamba'.*mamba2, set, mlp"),
        ({"fusion": "parents"}, "unknown fusion 'parents'.*parent, none, shuffled"),
        ({"levels": 0}, "option 'levels'.*greater than or equal to 1"),
        ({"depth": 0}, "option 'depth'.*greater than or equal to 1"),
        ({"drop_rate": 1.0}, "option 'drop_rate'.*less than 1"),
        ({"level": 0}, "Set levels=1"),
        ({"start": "mean"}, "unknown start 'mean'.*default, even, fine, residual"),
        ({"readout": "coarse"}, "unknown readout 'coarse'.*finest, all"),
        ({"dropout": 1.0}, "option 'dropout'.*less than 1"),
        ({"project": 0}, "option 'project'.*greater than or equal to 1"),
        ({"width": 64}, "unknown option of model 'marble' 'width'"),
        ({"order": "hilbrt"}, "unknown order 'hilbrt'; did you mean 'hilbert'"),
        ({"order": ["raster"]}, "1 orders for 2 levels.*Give one, or one for each level"),
        ({"directions": 3}, "directions must be 1 or 2"),
        ({"mixer": "set", "order": "hilbert"}, "mixer 'set' has none"),
        ({"mixer": "mlp", "directions": 2}, "mixer 'mlp' has none"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("marble", DIM, 2, **(SMALL | options))


def test_bags_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BagError, match="slide-0: the bag has 3 levels, the model was built for 2"):
        shaken()(nested_bag(30, 3))
    with pytest.raises(BagError, match="the bag has 1 levels"):
        shaken()(nested_bag(30, 1))
    with pytest.raises(BagError, match="tokens are 9 wide, the model was built for 8"):
        shaken()(nested_bag(30, 2, dim=9))
    with pytest.raises(BagError, match="model reads level 2"):
        shaken(levels=1, level=2)(nested_bag(30, 2))
