"""A number that is none at a random step of training: it stops there and names slide and step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from marble.bags.bag import Bag
from marble.bags.tensors import map_file
from marble.errors import NonFiniteError
from marble.training.loop import TrainingLoop
from marble.training.run import execute
from tests.reliability.scale import scaled
from tests.training.jobs import plan, with_recipe

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(1800)]
EPOCHS = 3
NAN, INFINITY = float("nan"), float("inf")


def _token(value: float) -> Callable[[Bag], Bag]:
    """One number of one token; a store refuses such a bag, so it is spoiled after it was read."""

    def spoil(bag: Bag) -> Bag:
        features = bag.finest.features.clone()
        features[len(features) // 2, 1] = value
        return Bag(bag.slide_id, [*bag.levels[:-1], replace(bag.finest, features=features)], checked=True)

    return spoil


def _loss(value: float) -> Callable[[Tensor], Tensor]:
    return lambda loss: loss * 0 + value


def _gradient(loss: Tensor) -> Tensor:
    return loss + (loss * 0).sqrt() * 0  # finite, but the derivative of a root at 0 is not


#: what is spoiled of a step, how, and what is said of it
KINDS: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("token", _token(NAN), "loss is nan"),
    ("token", _token(INFINITY), "loss is nan"),
    ("loss", _loss(NAN), "loss is nan"),
    ("loss", _loss(INFINITY), "loss is inf"),
    ("loss", _gradient, "gradient is not finite"),
)


def test_a_number_that_is_none_at_a_random_step_stops_training_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    planned = with_recipe(plan(tmp_path)[0], epochs=EPOCHS)
    an_epoch = sum(len(case.slides) for case in planned.job.train)
    rng, forward, loss_of = random.Random(5), TrainingLoop._forward, TrainingLoop._loss
    tries = scaled(40)
    record_property("cases", tries)
    for number in range(tries):
        what, spoil, reason = KINDS[number % len(KINDS)]
        step, seen = rng.randrange(EPOCHS * an_epoch), list[str]()

        def is_now(kind: str, what: str = what, step: int = step, seen: list[str] = seen) -> bool:
            return kind == what and len(seen) == step + 1

        def spoiled_forward(
            loop: Any, bag: Bag, seen: list[str] = seen, spoil: Any = spoil, is_now: Any = is_now
        ) -> Any:
            seen.append(bag.slide_id)
            return forward(loop, spoil(bag) if is_now("token") else bag)

        def spoiled_loss(loop: Any, slide: str, out: Any, spoil: Any = spoil, is_now: Any = is_now) -> Any:
            loss = loss_of(loop, slide, out)
            return spoil(loss) if is_now("loss") else loss

        monkeypatch.setattr(TrainingLoop, "_forward", spoiled_forward)
        monkeypatch.setattr(TrainingLoop, "_loss", spoiled_loss)
        run = planned.model_copy(update={"folder": str(tmp_path / f"run-{number}")})
        where = f"{reason} at epoch {step // an_epoch + 1}, step {step % an_epoch + 1}"
        with pytest.raises(NonFiniteError, match=where) as caught:
            execute(run)
        assert caught.value.where == seen[-1]
        assert len(seen) == step + 1, "another step was taken"
        stored = list(Path(run.folder).rglob("*.safetensors"))
        assert stored  # the checkpoint of before the first step, at least
        for path in stored:
            assert all(torch.isfinite(tensor.double()).all() for tensor in map_file(path)[0].values()), path
        assert not (Path(run.folder) / "run.json").exists()
