"""The loop: same seed, same bytes; a killed run resumes to the same bytes; test labels have no say."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from marble import files
from marble.bags.store import BagStore
from marble.bags.tensors import map_file
from marble.errors import NonFiniteError, RunError
from marble.training.checkpoint import load_checkpoint, newest, save_checkpoint
from marble.training.run import PlannedRun, execute
from marble.training.run_folder import RunFolder
from tests.training.jobs import plan, with_recipe

MARBLE = '[{ name = "marble", d_state = 8 }]'
RESULT = ("model.safetensors", "predictions.csv", "history.csv")


def _bytes(folder: str | Path) -> dict[str, bytes]:
    return {name: (Path(folder) / name).read_bytes() for name in RESULT}


@pytest.mark.parametrize("kind", ["burden", "survival"])
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, kind: str) -> None:
    results = []
    for name in ("a", "b"):
        planned = plan(tmp_path / name, kind, MARBLE)[0]
        execute(planned)
        results.append(_bytes(planned.folder))
    assert results[0] == results[1]


def test_another_seed_gives_another_model(tmp_path: Path) -> None:
    first, *_ = plan(tmp_path, models='[{ name = "mean", hidden = 8 }]')
    other = first.model_copy(
        update={"job": first.job.model_copy(update={"seed": 99}), "folder": str(tmp_path / "other")}
    )
    execute(first)
    execute(other)
    assert _bytes(first.folder)["model.safetensors"] != _bytes(other.folder)["model.safetensors"]


WORKER = """
import json, sys
from marble.training.run import PlannedRun, execute
execute(PlannedRun.model_validate_json(open(sys.argv[1]).read()))
"""


def _killed_and_resumed(planned: PlannedRun, tmp_path: Path, kills: int, rng: random.Random, whole_s: float) -> None:
    """Start the run in a process of its own, kill it at random moments, and start it again until it is done."""
    job = tmp_path / "job.json"
    job.write_text(planned.model_dump_json())
    done = 0
    started = False
    while not (Path(planned.folder) / "run.json").exists():
        process = subprocess.Popen([sys.executable, "-c", WORKER, str(job)], env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done < kills:
            time.sleep(rng.uniform(0.3, 1.0) * whole_s)
            process.send_signal(signal.SIGKILL)
            done += 1
        process.wait()
        root = Path(planned.folder)
        started = started or (root / "checkpoints").exists()
        if started and not (root / "fit.json").exists():
            assert newest(root / "checkpoints") is not None  # once there was one, a valid one always exists
    assert done > 0


def _survives_kills(tmp_path: Path, kills: int) -> None:
    straight = plan(tmp_path / "straight", models='[{ name = "abmil", hidden = 16 }]', epochs=4)[0]
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import marble.training.run"], check=True)
    importing = time.monotonic() - began
    began = time.monotonic()
    execute(straight)
    whole = time.monotonic() - began + importing
    broken = plan(tmp_path / "broken", models='[{ name = "abmil", hidden = 16 }]', epochs=4)[0]
    _killed_and_resumed(broken, tmp_path, kills, random.Random(0), whole)
    assert _bytes(straight.folder) == _bytes(broken.folder)
    assert not list(Path(broken.folder).rglob("*.part"))


def test_killed_twice_resumes_bitwise(tmp_path: Path) -> None:
    _survives_kills(tmp_path, kills=2)


@pytest.mark.parametrize("kind", ["burden", "survival"])
@pytest.mark.parametrize("epoch", [1, 2])
def test_stopped_between_epochs_resumes_bitwise(tmp_path: Path, kind: str, epoch: int) -> None:
    straight, broken = plan(tmp_path / "straight", kind)[0], plan(tmp_path / "broken", kind)[0]
    execute(straight)

    def stop(event: dict[str, Any]) -> None:
        if event["epoch"] == epoch:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(broken, stop)
    found = newest(Path(broken.folder) / "checkpoints")
    assert found is not None
    assert found.epoch == epoch  # so that the second part does go on from there
    execute(broken)
    assert _bytes(straight.folder) == _bytes(broken.folder)


@pytest.mark.parametrize("kind", ["burden", "survival"])
def test_dead_after_any_file_it_wrote_it_resumes_bitwise(tmp_path: Path, kind: str) -> None:
    """Between a checkpoint and the history, too: the last epoch has no further one that would write it again."""
    straight = plan(tmp_path / "straight", kind, epochs=2)[0]
    execute(straight)
    deaths = 0
    while _dies_after_writing(deaths + 1, broken := plan(tmp_path / str(deaths), kind, epochs=2)[0]):
        deaths += 1
        execute(broken)
        assert _bytes(straight.folder) == _bytes(broken.folder), deaths
    assert deaths > 10


def _dies_after_writing(number: int, planned: PlannedRun) -> bool:
    """Run until so many files and folders were published; whether it came to that."""
    left = number

    def dying(publish: Callable[..., Any]) -> Callable[..., Any]:
        def published(*args: Any, **options: Any) -> Any:
            nonlocal left
            done = publish(*args, **options)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return done

        return published

    with pytest.MonkeyPatch.context() as patched:
        for name in ("publish", "publish_directory"):
            patched.setattr(files, name, dying(getattr(files, name)))
        try:
            execute(planned)
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.reliability
def test_killed_twenty_times_resumes_bitwise(tmp_path: Path) -> None:
    for number in range(10):
        _survives_kills(tmp_path / str(number), kills=2)


def test_test_labels_have_no_say(tmp_path: Path) -> None:
    """With noise for test labels, the weights, the threshold and the history stay byte for byte the same."""
    honest = plan(tmp_path / "a")[0]
    execute(honest)
    noisy = plan(tmp_path / "b")[0]
    held_out = json.loads(Path(noisy.test).read_text())
    rng = random.Random(1)
    for case in held_out["cases"]:
        case["target"]["label"] = rng.choice(["negative", "positive"])
    files.publish_json(noisy.test, held_out)
    execute(noisy)
    for name in ("model.safetensors", "history.csv"):
        assert _bytes(honest.folder)[name] == _bytes(noisy.folder)[name]
    a, b = RunFolder.open(honest.folder).record, RunFolder.open(noisy.folder).record
    assert a["calibration"] == b["calibration"]
    assert a["fit"] == b["fit"]


def test_training_never_opens_the_held_out_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(tmp_path)[0]
    opened: list[str] = []
    real = files.read_json

    def watch(path: str | Path, *expected: Any) -> Any:
        opened.append(str(path))
        return real(path, *expected)

    monkeypatch.setattr(files, "read_json", watch)
    from marble.training.fit import fit

    fit(planned.job, planned.folder)
    assert planned.test not in opened
    execute(planned)
    assert opened.count(planned.test) == 1
    patients = {case.case_id for case in (*planned.job.train, *planned.job.val)}
    held_out = {case["case_id"] for case in json.loads(Path(planned.test).read_text())["cases"]}
    assert not patients & held_out


def test_nobody_is_tested_whom_the_fit_has_seen(tmp_path: Path) -> None:
    first, second = plan(tmp_path, models='[{ name = "tiles" }]')[:2]
    with pytest.raises(RunError, match=r"held-out patient '\w+' is in the training or validation of this run \(and "):
        execute(first.model_copy(update={"test": second.test}))
    assert not Path(first.folder, "predictions.csv").exists()


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    planned = plan(tmp_path)[0]
    execute(planned)
    before = {path: path.stat().st_mtime_ns for path in Path(planned.folder).iterdir()}
    execute(planned)
    assert before == {path: path.stat().st_mtime_ns for path in Path(planned.folder).iterdir()}


@pytest.mark.parametrize("change", ["lr", "seed", "threads"])
def test_resuming_as_another_job_is_refused(tmp_path: Path, change: str) -> None:
    planned = plan(tmp_path)[0]
    execute(planned)
    Path(planned.folder, "fit.json").unlink()
    Path(planned.folder, "run.json").unlink()
    if change == "lr":
        other = with_recipe(planned, lr=1e-5)
    else:
        other = planned.model_copy(update={"job": planned.job.model_copy(update={change: 2})})
    with pytest.raises(RunError, match="started with another job than it would be resumed with"):
        execute(other)
    record = execute(other.model_copy(update={"allow_drift": True}))
    assert record["fit"]["drift"] is True


def test_changed_bags_are_another_job(tmp_path: Path) -> None:
    planned = plan(tmp_path)[0]
    store = BagStore(planned.job.store)
    slide = planned.job.train[0].slides[0]
    bag = store.load(slide)
    changed = bag.with_levels([bag.levels[0], bag.levels[1].take(torch.arange(len(bag.finest) - 1), None)])
    levels = [bag.levels[0], bag.levels[1]]
    assert bag.finest.parent is not None
    levels[1] = bag.finest.take(torch.arange(len(bag.finest) - 1), bag.finest.parent[:-1])
    store.save(changed.with_levels(levels))
    again = plan(tmp_path)[0]
    assert again.job.bags_sha256 != planned.job.bags_sha256


def test_a_nan_stops_at_once_and_names_slide_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(tmp_path)[0]
    from marble.training.loop import TrainingLoop

    original = TrainingLoop._loss
    steps: list[str] = []

    def poisoned(self: Any, slide: str, out: Any) -> Any:
        steps.append(slide)
        loss = original(self, slide, out)
        return loss * float("nan") if len(steps) == 3 else loss

    monkeypatch.setattr(TrainingLoop, "_loss", poisoned)
    with pytest.raises(NonFiniteError, match="loss is nan at epoch 1, step 3") as caught:
        execute(planned)
    assert caught.value.where == steps[-1]
    assert len(steps) == 3
    for path in Path(planned.folder).rglob("*.safetensors"):
        for tensor in map_file(path)[0].values():
            assert torch.isfinite(tensor.double()).all()


def test_a_non_finite_gradient_stops_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(tmp_path)[0]
    from marble.training.loop import TrainingLoop

    original = TrainingLoop._loss

    def poisoned(self: Any, slide: str, out: Any) -> Any:
        loss = original(self, slide, out)
        return loss + (loss.detach() * 0 + (loss * 0).sqrt() * 0)  # finite, but the derivative of sqrt at 0 is not

    monkeypatch.setattr(TrainingLoop, "_loss", poisoned)
    with pytest.raises(NonFiniteError, match="gradient is not finite at epoch 1, step 1"):
        execute(planned)


def test_no_gradient_outlives_its_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint does not hold gradients, so a resumed run would not have them."""
    planned = with_recipe(plan(tmp_path)[0], accumulate=2)
    from marble.training.loop import TrainingLoop

    original = TrainingLoop._group_loss
    left_at_start: list[bool] = []
    seen = 0

    def last_cannot_be_compared(self: Any, group: Any) -> Any:
        nonlocal seen
        slides = len(self.slides)
        assert slides % 2 == 0  # the last slide of an epoch shares its step with the one before
        if seen % slides == 0:
            left_at_start.append(any(p.grad is not None for p in self.model.parameters()))
        seen += 1
        return None if seen % slides == 0 else original(self, group)

    monkeypatch.setattr(TrainingLoop, "_group_loss", last_cannot_be_compared)
    execute(planned)
    assert left_at_start == [False] * 3


def test_selection_that_cannot_be_made_is_refused_before_training(tmp_path: Path) -> None:
    planned = plan(tmp_path)[0]
    one_class = tuple(case for case in planned.job.val if case.target.label == "positive")
    job = planned.job.model_copy(update={"val": one_class})
    said = r'validation auc is undefined \(.*\), so no checkpoint could be chosen\. .* select_by = "last"'
    with pytest.raises(RunError, match=said):
        execute(planned.model_copy(update={"job": job}))


def test_a_loss_chooses_where_the_metric_is_undefined(tmp_path: Path) -> None:
    planned = with_recipe(plan(tmp_path)[0], select_by="loss")
    one_class = tuple(case for case in planned.job.val if case.target.label == "positive")
    record = execute(planned.model_copy(update={"job": planned.job.model_copy(update={"val": one_class})}))
    rows = list(csv.DictReader((Path(planned.folder) / "history.csv").open()))
    assert all(row["val_auc"].startswith("undefined") for row in rows)
    losses = [float(row["val_loss"]) for row in rows]
    assert record["fit"]["best_epoch"] == losses.index(min(losses)) + 1


def test_the_last_epoch_needs_no_validation_metric(tmp_path: Path) -> None:
    planned = with_recipe(plan(tmp_path)[0], select_by="last")
    one_class = tuple(case for case in planned.job.val if case.target.label == "positive")
    record = execute(planned.model_copy(update={"job": planned.job.model_copy(update={"val": one_class})}))
    assert record["fit"]["best_epoch"] == 3


def test_a_loss_that_is_undefined_cannot_choose(tmp_path: Path) -> None:
    planned = with_recipe(plan(tmp_path, "survival")[0], select_by="loss")
    censored = tuple(case for case in planned.job.val if not case.target.event)
    job = planned.job.model_copy(update={"val": censored[:3]})
    with pytest.raises(
        RunError, match=r"validation loss is undefined \(no event .*\), so no checkpoint could be chosen"
    ):
        execute(planned.model_copy(update={"job": job}))


def test_early_stopping_and_choice(tmp_path: Path) -> None:
    planned = with_recipe(plan(tmp_path, epochs=30)[0], patience=2)
    record = execute(planned)
    rows = list(csv.DictReader((Path(planned.folder) / "history.csv").open()))
    aucs = [float(row["val_auc"]) for row in rows]
    losses = [float(row["val_loss"]) for row in rows]
    best = max(range(len(rows)), key=lambda i: (aucs[i], -losses[i]))
    assert record["fit"]["best_epoch"] == best + 1
    assert record["fit"]["epochs"] == len(rows) < 30
    assert len(rows) - 1 - aucs.index(max(aucs)) == 2


def test_the_newest_whole_checkpoint_wins(tmp_path: Path) -> None:
    for epoch in range(3):
        save_checkpoint(tmp_path, epoch, {"model": {"w": torch.full((2,), float(epoch))}}, {"epoch": epoch})
    found = newest(tmp_path)
    assert found is not None
    assert found.epoch == 2
    damaged = tmp_path / "epoch-0002" / "model.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(bytes(data))
    found = newest(tmp_path)
    assert found is not None
    assert found.epoch == 1
    assert torch.equal(found.tensors("model")["w"], torch.ones(2))
    save_checkpoint(tmp_path, 2, {"model": {"w": torch.zeros(2)}}, {})  # over the damaged one
    assert load_checkpoint(tmp_path / "epoch-0002").epoch == 2
    assert newest(tmp_path / "none") is None
