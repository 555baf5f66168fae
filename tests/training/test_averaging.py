"""Averaged weights, the last epoch and standardised tokens: what is kept, and that a resumed run keeps the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from marble.bags.store import BagStore
from marble.models import build
from marble.models.statistics import measure
from marble.training.averaging import WeightAverage
from marble.training.run import execute
from marble.training.run_folder import RunFolder
from tests.training.jobs import plan, with_recipe


def test_the_mean_follows_the_weights() -> None:
    model = build("mean", 4, 2, hidden=3)
    average = WeightAverage(model, decay=0.5)
    (name, weight), *_ = model.named_parameters()
    mean = weight.detach().clone()
    for step in range(1, 13):
        with torch.no_grad():
            weight.add_(step)
        average.after_step()
        decay = min(0.5, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weight.detach()
    torch.testing.assert_close(average.mean[name], mean)
    before = weight.detach().clone()
    with average.in_place():
        torch.testing.assert_close(weight.detach(), mean)
    assert torch.equal(weight.detach(), before)


@pytest.mark.parametrize("kind", ["burden", "survival"])
def test_the_last_epoch_is_kept_and_resuming_changes_no_bit(tmp_path: Path, kind: str) -> None:
    changes: dict[str, Any] = {"select_by": "last", "ema": 0.9, "standardise": True, "patience": 1}
    straight, broken = (with_recipe(plan(tmp_path / name, kind)[0], **changes) for name in ("straight", "broken"))
    record = execute(straight)
    assert record["fit"]["best_epoch"] == record["fit"]["epochs"] == straight.job.recipe.epochs

    def stop(event: dict[str, Any]) -> None:
        if event["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(broken, stop)
    execute(broken)
    for name in ("model.safetensors", "predictions.csv", "history.csv"):
        assert (Path(straight.folder) / name).read_bytes() == (Path(broken.folder) / name).read_bytes()
    plain = with_recipe(plan(tmp_path / "plain", kind)[0], **(changes | {"ema": None}))
    execute(plain)
    assert (Path(plain.folder) / "predictions.csv").read_bytes() != (
        Path(straight.folder) / "predictions.csv"
    ).read_bytes()


def test_statistics_are_of_the_training_slides_alone(tmp_path: Path) -> None:
    planned = with_recipe(plan(tmp_path)[0], standardise=True)
    execute(planned)
    model = RunFolder.open(planned.folder).model()
    store = BagStore(planned.job.store)
    slides = sorted(slide for case in planned.job.train for slide in case.slides)
    expected = measure(store.load(slide) for slide in slides)
    assert model.inputs.mean is not None
    assert torch.equal(model.inputs.mean, torch.stack([one.mean for one in expected]).float())
