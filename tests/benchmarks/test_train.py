"""`marble bench train`: it measures a real fit, and the components of an epoch add up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marble import files
from marble.benchmarks import train
from marble.benchmarks.train import Event, overheads, seconds_per_epoch
from marble.models import BagModel
from marble.training.loop import TrainingLoop


def test_quick_run_writes_every_documented_field(tmp_path: Path) -> None:
    untouched = (BagModel.__call__, TrainingLoop._train_epoch, torch.autograd.backward)
    result = train.run(json_path=tmp_path / "train.json", quick=True)
    assert files.read_json(tmp_path / "train.json") == result
    assert {"machine", "dim", "tokens", "train_bags", "val_bags", "overhead_with_checkpoint", "target"} <= set(result)
    seconds = result["seconds"]
    assert set(seconds) == {*train.IN_EPOCH, "rest", "epoch", "worker", "validation", "checkpoint"}
    assert all(value > 0 for value in seconds.values())
    assert 0 < result["overhead"] < result["overhead_with_checkpoint"] < 1
    # One measured epoch: every part of it was timed, and none twice.
    assert sum(seconds[what] for what in (*train.IN_EPOCH, "rest")) == pytest.approx(seconds["epoch"])
    assert (BagModel.__call__, TrainingLoop._train_epoch, torch.autograd.backward) == untouched
    for row in result["small_step"]:
        assert row["times_cheaper"] == pytest.approx(row["paper"] / row["small"])


def test_components_are_those_inside_the_later_epochs() -> None:
    first = [Event("epoch", 0.0, 100.0), Event("forward", 10.0, 90.0)]
    later = [
        Event("waiting", 200.0, 201.0),
        Event("forward", 201.0, 204.0),
        Event("backward", 204.0, 209.0),
        Event("forward", 209.0, 210.0),
        Event("optimiser", 210.0, 210.5),
        Event("epoch", 200.0, 212.0),
        Event("forward", 213.0, 220.0),  # of the validation
        Event("validation", 212.0, 221.0),
        Event("checkpoint", 221.0, 224.0),
    ]
    seconds = seconds_per_epoch([*first, Event("checkpoint", 100.0, 150.0), *later])
    assert seconds == {
        "epoch": 12.0,
        "waiting": 1.0,
        "forward": 4.0,
        "loss": 0,
        "backward": 5.0,
        "optimiser": 0.5,
        "worker": 0,
        "rest": 1.5,
        "validation": 9.0,
        "checkpoint": 3.0,
    }
    found = overheads(seconds)
    assert found["overhead"] == pytest.approx(0.25)
    assert found["overhead_with_checkpoint"] == pytest.approx(0.4)
    assert found["met"] is False
