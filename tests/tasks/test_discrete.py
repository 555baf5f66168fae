"""Discrete-time loss against its formula, one case at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marble.errors import InputError, NonFiniteError, RunError
from marble.targets import SurvivalTime, Target
from marble.tasks.discrete import DiscreteCriterion, bins_of, discrete_nll, quantile_edges, survival_curve
from marble.tasks.metric import Undefined


def by_hand(logits: list[float], y: int, event: bool, alpha: float) -> float:
    hazard = [1 / (1 + math.exp(-x)) for x in logits]
    survival = [math.prod(1 - h for h in hazard[: k + 1]) for k in range(len(hazard))]
    if event:
        return -math.log(1.0 if y == 0 else survival[y - 1]) - math.log(hazard[y])
    return -(1 - alpha) * math.log(survival[y])


@pytest.mark.parametrize("alpha", [0.0, 0.15, 0.4])
def test_equals_the_formula(alpha: float) -> None:
    rng = np.random.default_rng(0)
    logits, y, event = rng.normal(size=(50, 4)), rng.integers(0, 4, 50), rng.random(50) < 0.5
    expected = [by_hand(logits[k].tolist(), int(y[k]), bool(event[k]), alpha) for k in range(50)]
    ours = discrete_nll(torch.from_numpy(logits), torch.from_numpy(y), torch.from_numpy(event), alpha)
    assert ours.item() == pytest.approx(np.mean(expected), abs=1e-12)


def test_certainty_stays_finite() -> None:
    logits = torch.tensor([[500.0, 0.0], [-500.0, 0.0]], requires_grad=True)
    loss = discrete_nll(logits, torch.tensor([1, 0]), torch.tensor([True, True]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(gradient).all()
    assert loss.item() == pytest.approx((-math.log(1e-7) - math.log(0.5) - math.log(1e-7)) / 2, rel=1e-5)


def test_bins_are_quarters_of_the_event_times() -> None:
    time = np.arange(1.0, 13.0)
    event = np.array([True] * 8 + [False] * 4)  # censored times must not move the edges
    edges = quantile_edges(time, event, 4)
    assert edges.tolist() == np.quantile(np.arange(1.0, 9.0), [0.25, 0.5, 0.75]).tolist()
    assert np.bincount(bins_of(time, edges)[:8]).tolist() == [2, 2, 2, 2]
    assert bins_of(time, edges)[8:].tolist() == [3, 3, 3, 3]
    assert bins_of(edges, edges).tolist() == [1, 2, 3]  # a bin holds its left edge
    assert bins_of(np.array([0.0, 1e9]), edges).tolist() == [0, 3]


def test_edges_equal_pandas_qcut() -> None:
    import pandas as pd

    rng = np.random.default_rng(1)
    time, event = rng.exponential(20, 60), rng.random(60) < 0.6
    _, theirs = pd.qcut(time[event], q=4, retbins=True)
    assert quantile_edges(time, event, 4).tolist() == pytest.approx(theirs[1:-1].tolist(), abs=1e-12)


def test_bins_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(InputError, match="Use fewer bins"):
        quantile_edges(np.array([1.0, 1.0, 1.0, 2.0]), np.array([True] * 4), 4)
    with pytest.raises(InputError, match="no event"):
        quantile_edges(np.array([1.0, 2.0]), np.array([False, False]), 4)


TARGETS: dict[str, Target] = {f"s{k}": SurvivalTime(float(k), k % 3 != 0) for k in range(1, 13)}
PATIENTS = {slide: slide for slide in TARGETS}


def test_criterion_looks_up_the_bin_of_the_slide() -> None:
    criterion = DiscreteCriterion(TARGETS, PATIENTS, bins=4, alpha=0.3)
    logits = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    losses = []
    for k, (slide, target) in enumerate(TARGETS.items()):
        assert isinstance(target, SurvivalTime)
        y = int(np.sum(criterion.edges <= target.time))
        losses.append(criterion.loss(slide, logits[k]).item())
        assert losses[-1] == pytest.approx(by_hand(logits[k].tolist(), y, target.event, 0.3), abs=1e-12)
    assert criterion.validation_loss(list(TARGETS.values()), logits) == pytest.approx(np.mean(losses), abs=1e-12)
    assert criterion.validation_loss([], logits[:0]) == Undefined("no cases")


def test_edges_count_patients_not_slides() -> None:
    once = DiscreteCriterion(TARGETS, PATIENTS, bins=3, alpha=0.0)
    more = {f"s1-{k}": TARGETS["s1"] for k in range(20)}
    again = DiscreteCriterion({**TARGETS, **more}, {**PATIENTS, **dict.fromkeys(more, "s1")}, bins=3, alpha=0.0)
    assert once.edges.tolist() == again.edges.tolist()


def test_state_guards_the_edges() -> None:
    criterion = DiscreteCriterion(TARGETS, PATIENTS, bins=4, alpha=0.0)
    criterion.load_state(criterion.state())
    for state in ({}, {"edges": criterion.state()["edges"] + 1}):
        with pytest.raises(RunError, match="time bins"):
            criterion.load_state(state)


def test_bad_logits_are_refused() -> None:
    criterion = DiscreteCriterion(TARGETS, PATIENTS, bins=4, alpha=0.0)
    with pytest.raises(InputError, match="s1: 4 time bins need 4 logits"):
        criterion.loss("s1", torch.zeros(3))
    with pytest.raises(NonFiniteError, match="s1"):
        criterion.loss("s1", torch.full((4,), torch.nan))
    with pytest.raises(InputError, match=r"\(n, bins\)"):
        discrete_nll(torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64), torch.zeros(2))


def test_survival_never_rises() -> None:
    curve = survival_curve(torch.randn(20, 5, generator=torch.Generator().manual_seed(0)))
    assert (curve.diff(dim=1) <= 0).all()
    assert ((curve >= 0) & (curve <= 1)).all()
