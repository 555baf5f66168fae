"""A number that is none at a random step of training: it stops there and names slide and step."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from marble.bags.tensors import map_file
from marble.errors import NonFiniteError
from marble.training.loop import TrainingLoop
from marble.training.run import execute
from tests.reliability.scale import scaled
from tests.training.jobs import plan, with_recipe

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(1800)]
EPOCHS = 3


def _bad_loss(value: float) -> Callable[[Any], Any]:
    return lambda loss: loss * 0 + value


def _bad_gradient(loss: Any) -> Any:
    return loss + (loss * 0).sqrt() * 0  # finite, but the derivative of a root at 0 is not


KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nan": (_bad_loss(float("nan")), "loss is nan"),
    "infinity": (_bad_loss(float("inf")), "loss is inf"),
    "gradient": (_bad_gradient, "gradient is not finite"),
}


def test_a_number_that_is_none_at_a_random_step_stops_training_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    planned = with_recipe(plan(tmp_path)[0], epochs=EPOCHS)
    an_epoch = sum(len(case.slides) for case in planned.job.train)
    original, rng = TrainingLoop._loss, random.Random(5)
    tries = scaled(30)
    record_property("cases", tries)
    for number in range(tries):
        poison, reason = KINDS[list(KINDS)[number % len(KINDS)]]
        step, seen = rng.randrange(EPOCHS * an_epoch), list[str]()

        def poisoned(
            self: Any, slide: str, out: Any, step: int = step, seen: list[str] = seen, poison: Any = poison
        ) -> Any:
            loss = original(self, slide, out)
            seen.append(slide)
            return poison(loss) if len(seen) == step + 1 else loss

        monkeypatch.setattr(TrainingLoop, "_loss", poisoned)
        run = planned.model_copy(update={"folder": str(tmp_path / f"run-{number}")})
        where = f"{reason} at epoch {step // an_epoch + 1}, step {step % an_epoch + 1}"
        with pytest.raises(NonFiniteError, match=where) as caught:
            execute(run)
        assert caught.value.where == seen[-1]
        assert len(seen) == step + 1, "another step was taken"
        for path in Path(run.folder).rglob("*.safetensors"):
            assert all(torch.isfinite(tensor.double()).all() for tensor in map_file(path)[0].values()), path
        assert not (Path(run.folder) / "run.json").exists()
