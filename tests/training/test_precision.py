"""What rounding the factors of projections costs MARBLE, against the same model in float64."""

from __future__ import annotations

import copy
import signal
import subprocess
from dataclasses import replace

import pytest
import torch

from marble.bags.augment import generator
from marble.bags.bag import Bag
from marble.models import COMMON, build
from marble.training.precision import WITHOUT_NARROW, Precision, cpu_outlives
from tests.bags.making import random_bag

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
