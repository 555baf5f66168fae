"""What rounding the factors of projections costs MARBLE, against the same model in float64."""

from __future__ import annotations

import copy
import signal
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import torch

from marble.bags.augment import generator
from marble.bags.bag import Bag
from marble.models import COMMON, MODELS, build, model_class
from marble.models.statistics import measure
from marble.models.zoo.probe import ClosedForm
from marble.training.precision import WITHOUT_NARROW, Precision, cpu_outlives
from tests.bags.making import random_bag
from tests.models.contract import DIM, make_bag, make_model

#: relative errors that docs/how-to/gpu.md states; a bfloat16 number has 8 bits, so one product is off by up to 2**-8
LOGITS, GRADIENTS = 0.02, 0.03
EXACT = 1e-4


def errors(precision: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Relative errors of logits, and of all gradients as one vector, over several bags."""
    monkeypatch.setenv("MARBLE_SSD_BACKEND", backend)
    torch.manual_seed(int(generator("precision").initial_seed() % 2**63))
    model = build("marble", 64, 3, levels=2, d_state=16)
    exact = copy.deepcopy(model).double()
    how = Precision(replace(COMMON, precision=precision), torch.device("cpu"))  # type: ignore[arg-type]
    outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for number in range(4):
        bag = random_bag(f"s{number}", coarse=40, dim=64)
        ours, theirs = how.forward(model, bag).logits, exact(_wide(bag)).logits
        torch.autograd.backward([ours.square().sum(), theirs.square().sum()])
        outputs.append((ours.detach().double(), theirs.detach()))
    gradients = [
        (one.grad.double().flatten(), other.grad.flatten())
        for one, other in zip(model.parameters(), exact.parameters(), strict=True)
        if one.grad is not None and other.grad is not None
    ]
    return _relative(outputs), _relative(gradients)


def _wide(bag: Bag) -> Bag:
    return bag.to(dtype=torch.float64)


def _relative(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    ours, theirs = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("backend", ["batched", "torch"])
def test_bfloat16_projections_stay_within_the_stated_error(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, gradients = errors("bfloat16", backend, monkeypatch)
    assert EXACT < logits < LOGITS  # and it is rounded at all
    assert EXACT < gradients < GRADIENTS


def test_float32_has_all_its_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(errors("float32", "batched", monkeypatch)) < EXACT


def test_a_machine_on_which_narrow_products_end_a_program_trains_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    died = subprocess.CompletedProcess[bytes]([], returncode=-signal.SIGILL)
    monkeypatch.setattr("marble.training.precision.subprocess.run", lambda *given, **how: died)
    cpu_outlives.cache_clear()
    try:
        with pytest.warns(UserWarning, match="asks for bfloat16, but a product in it ends a program"):
            how = Precision(replace(COMMON, precision="bfloat16"), torch.device("cpu"))
    finally:
        cpu_outlives.cache_clear()
    assert how.used == "float32"
    assert how.notes == [WITHOUT_NARROW.format(precision="bfloat16")]


@pytest.mark.parametrize("name", [name for name in MODELS if not issubclass(model_class(name), ClosedForm)])
def test_every_model_trains_in_bfloat16(name: str) -> None:
    bag, model = make_bag(40, 2), make_model(name).train()
    how = Precision(replace(COMMON, precision="bfloat16"), torch.device("cpu"))
    torch.manual_seed(0)  # of dropout
    out = how.forward(model, bag)
    torch.autograd.backward([out.logits.sum(), *(side.logits.sum() for side in out.side)])
    torch.manual_seed(0)
    assert out.logits.dtype == torch.float32
    assert _relative([(out.logits.detach(), model(bag).logits.detach())]) < 0.1
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block": "prenorm"},
        {"mixer": "set"},
        {"block": "prenorm", "mixer": "set", "project": 16, "start": "residual"},
    ],
)
def test_what_is_standardised_and_the_linear_term_keep_their_digits(options: dict[str, Any]) -> None:
    """Tokens far from zero: a mean taken off after factors were rounded leaves a difference of large numbers."""
    far = 30 * torch.randn(DIM, generator=torch.Generator().manual_seed(1))
    bags = []
    for number in range(4):
        bag = make_bag(40, 2, seed=number)
        bags.append(bag.with_levels([replace(level, features=level.features + far) for level in bag.levels]))
    model = make_model("marble", d_state=16, **options).eval()
    model.standardise(measure(bags))
    how = Precision(replace(COMMON, precision="bfloat16"), torch.device("cpu"))

    def error() -> float:
        exact = copy.deepcopy(model).double()
        with torch.no_grad():
            return _relative([(how.forward(model, bag).logits.double(), exact(_wide(bag)).logits) for bag in bags])

    assert error() < LOGITS
    weight = torch.randn(2, 2 * DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    model.linear_term.set(weight, -(weight @ torch.cat([far, far]).double()), 0.0, next(model.parameters()).detach())
    assert error() < EXACT
