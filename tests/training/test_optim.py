"""Optimisers and schedules against their definitions."""

from __future__ import annotations

from dataclasses import replace
from math import cos, pi

import pytest
import torch

from marble.models import COMMON, build
from marble.models.base import decay_groups
from marble.training.optim import Optimizer, learning_rate, plateau_factor
from tests.bags.making import random_bag


def test_warmup_then_cosine_to_zero() -> None:
    rate = learning_rate(COMMON, steps_per_epoch=10)
    assert rate(0) == pytest.approx(3e-5 / 50)
    assert rate(49) == pytest.approx(3e-5)
    assert rate(50) == pytest.approx(3e-5)
    assert rate(50 + 125) == pytest.approx(1.5e-5)
    assert rate(50 + 100) == pytest.approx(3e-5 * 0.5 * (1 + cos(pi * 100 / 250)))
    assert rate(300) == pytest.approx(0, abs=1e-12)


def test_other_schedules() -> None:
    steps = replace(COMMON, schedule="multistep", milestones=(2, 4), gamma=0.2, lr=1.0, epochs=6)
    rate = learning_rate(steps, 10)
    assert [rate(s) for s in (0, 19, 20, 40)] == pytest.approx([1, 1, 0.2, 0.04])
    down = learning_rate(replace(COMMON, schedule="cosine", lr=1.0, lr_min=0.1, epochs=2), 10)
    assert [down(0), down(20)] == pytest.approx([1.0, 0.1])
    assert learning_rate(replace(COMMON, schedule="constant", lr=0.5), 10)(123) == 0.5


def test_plateau_equals_torch() -> None:
    recipe = replace(COMMON, schedule="plateau", gamma=0.8, plateau_patience=2)
    losses = [1.0, 0.9, 0.95, 0.96, 0.97, 0.98, 0.5, 0.6, 0.6, 0.6, 0.6]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.8, patience=2)
    for count, loss in enumerate(losses, start=1):
        scheduler.step(loss)
        assert plateau_factor(recipe, losses[:count]) == pytest.approx(optimizer.param_groups[0]["lr"])
    assert plateau_factor(COMMON, losses) == 1.0


@pytest.mark.parametrize("name", ["adamw", "adam", "lookahead-radam", "lookahead-adam"])
def test_state_survives_a_restart_bitwise(name: str) -> None:
    recipe = replace(COMMON, optimizer=name, lr=1e-2)  # type: ignore[arg-type]
    bag = random_bag(dim=8)

    def steps(model: torch.nn.Module, optimizer: Optimizer, count: int) -> None:
        for _ in range(count):
            model(bag).logits.pow(2).sum().backward()
            optimizer.step(1e-2)

    torch.manual_seed(0)
    straight = build("mean", 8, 2, hidden=4, dropout=0.0)
    optimizer = Optimizer(straight, recipe)
    steps(straight, optimizer, 4)
    saved = {key: value.clone() for key, value in optimizer.state().items()}
    weights = {key: value.clone() for key, value in straight.state_dict().items()}
    steps(straight, optimizer, 9)
    resumed = build("mean", 8, 2, hidden=4, dropout=0.0)
    resumed.load_state_dict(weights)
    again = Optimizer(resumed, recipe)
    again.load_state(saved)
    steps(resumed, again, 9)
    for a, b in zip(straight.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_lookahead_pulls_back_every_six_steps() -> None:
    torch.manual_seed(0)
    model = build("mean", 8, 2, hidden=4, dropout=0.0)
    plain = build("mean", 8, 2, hidden=4, dropout=0.0)
    plain.load_state_dict(model.state_dict())
    start = [p.detach().clone() for p in model.parameters()]
    recipe = replace(COMMON, optimizer="lookahead-adam", clip=None)
    slow, fast = Optimizer(model, recipe), Optimizer(plain, replace(recipe, optimizer="adam"))
    for step in range(6):
        for one, optimizer in ((model, slow), (plain, fast)):
            torch.autograd.backward(one(random_bag(dim=8)).logits.sum())  # a constant direction
            optimizer.step(1e-2)
        same = all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
        assert same == (step < 5)
    for begin, a, b in zip(start, model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, begin + 0.5 * (b - begin), atol=1e-6)


def test_decay_leaves_out_biases_and_norms() -> None:
    model = build("mean", 8, 2, hidden=4)
    decay, keep = decay_groups(model, 0.1)
    assert all(p.ndim >= 2 for p in decay["params"])
    assert all(p.ndim < 2 for p in keep["params"])
    assert (decay["weight_decay"], keep["weight_decay"]) == (0.1, 0.0)
    assert len(decay["params"]) + len(keep["params"]) == len(list(model.parameters()))
