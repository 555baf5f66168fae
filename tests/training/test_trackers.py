"""Trackers of history.csv: they show what it holds, once per epoch, and have no say in anything else."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marble.errors import SpecError, UnavailableError
from marble.experiment import Experiment, ExperimentSpec
from marble.training.run import PlannedRun, execute
from marble.training.trackers import History, TrackerName, Trackers, open_trackers, scalars
from tests.training.jobs import plan

RESULT = ("model.safetensors", "predictions.csv", "history.csv")


@pytest.fixture(autouse=True)
def _environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker sets defaults in the environment; set beforehand, they are undone after each test."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


def _tracked(planned: PlannedRun, *names: TrackerName) -> PlannedRun:
    return planned.model_copy(update={"track": names})


def _history(planned: PlannedRun) -> dict[tuple[str, int], float]:
    """{(column, epoch): number} of history.csv; a truth value is 0 or 1, text is left out."""
    found = {}
    with (Path(planned.folder) / "history.csv").open() as file:
        for row in csv.DictReader(file):
            for name, text in row.items():
                if name != "epoch" and not text.startswith("undefined"):
                    found[name, int(row["epoch"])] = float({"True": "1", "False": "0"}.get(text, text))
    return found


def _tensorboard(planned: PlannedRun) -> list[tuple[tuple[str, int], float]]:
    """Every scalar of every event file, as TensorBoard's own reader finds them."""
    loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    return [
        ((value.tag, event.step), value.tensor.float_val[0])
        for path in sorted((Path(planned.folder) / "tensorboard").iterdir())
        for event in loader.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def _mlflow(planned: PlannedRun) -> list[tuple[tuple[str, int], float]]:
    """Every number of every MLflow run in the run's folder, as MLflow's own client finds them."""
    client, runs = _mlflow_runs(planned)
    return [
        ((name, one.step), one.value)
        for run in runs
        for name in run.data.metrics
        for one in client.get_metric_history(run.info.run_id, name)
    ]


def _mlflow_runs(planned: PlannedRun) -> tuple[Any, list[Any]]:
    mlflow = importlib.import_module("mlflow")
    client = mlflow.MlflowClient(tracking_uri=(Path(planned.folder) / "mlruns").resolve().as_uri())
    return client, list(client.search_runs([one.experiment_id for one in client.search_experiments()]))


READERS = {"tensorboard": _tensorboard, "mlflow": _mlflow}


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_tracker_holds_the_history_and_changes_nothing(tmp_path: Path, name: TrackerName) -> None:
    pytest.importorskip(name)
    plain = plan(tmp_path)[0]
    seen = _tracked(plain, name).model_copy(update={"folder": f"{plain.folder} (seen, 100 %)"})
    record, tracked = execute(plain), execute(seen)
    for file in RESULT:
        assert (Path(plain.folder) / file).read_bytes() == (Path(seen.folder) / file).read_bytes()
    assert (record["job"], record["sha256"]) == (tracked["job"], tracked["sha256"])
    found = READERS[name](seen)
    assert len(found) == len(dict(found))
    assert dict(found) == pytest.approx(_history(seen), rel=1e-6)  # TensorBoard keeps 32 bits
    assert {"train_loss", "val_loss", "val_auc", "lr", "best"} <= {column for (column, _), _ in found}


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_resumed_run_has_every_epoch_once(tmp_path: Path, name: TrackerName) -> None:
    pytest.importorskip(name)
    planned = _tracked(plan(tmp_path)[0], name)

    def stop_after_two(event: dict[str, Any]) -> None:
        if event["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(planned, stop_after_two)
    assert {epoch for (_, epoch), _ in READERS[name](planned)} == {1, 2}
    execute(planned)
    found = READERS[name](planned)
    assert len(found) == len(dict(found))
    assert dict(found) == pytest.approx(_history(planned), rel=1e-6)


def test_a_tracker_turned_on_halfway_gets_the_epochs_before(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    planned = plan(tmp_path)[0]

    def stop(event: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(planned, stop)
    planned = _tracked(planned, "tensorboard")
    execute(planned)
    assert {epoch for (_, epoch), _ in _tensorboard(planned)} == {1, 2, 3}


def test_mlflow_says_how_a_run_ended(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    planned = plan(tmp_path)[0]
    root = Path(planned.folder)
    with pytest.raises(ZeroDivisionError), open_trackers(["mlflow"], root, planned.job):
        raise ZeroDivisionError
    (run,) = _mlflow_runs(planned)[1]
    assert run.info.status == "FAILED"
    with open_trackers(["mlflow"], root, planned.job):
        assert [run.info.status for run in _mlflow_runs(planned)[1]] == ["RUNNING"]
    (run,) = _mlflow_runs(planned)[1]
    assert run.info.status == "FINISHED"
    assert run.data.tags["marble_job"] == planned.job.fingerprint()


def test_mlflow_goes_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    planned = plan(tmp_path)[0]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    with open_trackers(["mlflow"], Path(planned.folder), planned.job):
        pass
    assert (tmp_path / "elsewhere").is_dir()
    assert not (Path(planned.folder) / "mlruns").exists()


OFFLINE = """
import socket, sys
def refused(*a, **k):
    print("NETWORK", a, flush=True)
    raise OSError("no network in this test")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refused
import time
from pathlib import Path
from marble.training.trackers import open_trackers
from marble.training.run import PlannedRun
planned = PlannedRun.model_validate_json(Path(sys.argv[1]).read_text())
with open_trackers(planned.track, Path(planned.folder), planned.job) as trackers:
    trackers.write([{"epoch": 1, "val_auc": 0.5}])
time.sleep(0.5)
"""


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_no_tracker_opens_a_connection(tmp_path: Path, name: TrackerName) -> None:
    pytest.importorskip(name)
    planned = _tracked(plan(tmp_path)[0], name)
    (tmp_path / "job.json").write_text(planned.model_dump_json())
    # MLflow keeps quiet under a test runner of its own accord; here it must do so because it was told to.
    ours = ("MLFLOW", "PYTEST", "CI", "GITHUB", "DO_NOT_TRACK")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    command = [sys.executable, "-c", OFFLINE, str(tmp_path / "job.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "NETWORK" not in done.stdout
    assert READERS[name](planned) == [(("val_auc", 1), 0.5)]


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny")])
def test_a_missing_package_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: TrackerName, package: str
) -> None:
    planned = _tracked(plan(tmp_path)[0], name)
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, name, None)  # what Python takes as "not installed"
    with pytest.raises(UnavailableError, match=f"pip install {package}"):
        execute(planned)
    assert not (Path(planned.folder) / "history.csv").exists()
    toml = tmp_path / "tiny.toml"
    toml.write_text(f'track = ["{name}"]\n' + toml.read_text())
    with pytest.raises(UnavailableError, match=f"pip install {package}"):
        Experiment.load(toml).plan(tmp_path / "out")


def test_unknown_trackers_are_refused_with_the_valid_ones() -> None:
    values = {"cohort": "c.csv", "task": "classification", "models": [{"name": "mean"}], "track": ["wandb"]}
    with pytest.raises(SpecError, match=r"track.0.*'tensorboard' or 'mlflow'.*wandb"):
        ExperimentSpec.parse(values)
    assert ExperimentSpec.parse({**values, "track": ["mlflow"]}).track == ("mlflow",)
    assert ExperimentSpec.parse({**values, "track": []}).track == ()


def test_planned_runs_carry_the_trackers_but_not_in_their_identity(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    plain = plan(tmp_path)[0]
    toml = tmp_path / "tiny.toml"
    toml.write_text('track = ["tensorboard"]\n' + toml.read_text())
    seen = Experiment.load(toml).plan(tmp_path / "out")[0]
    assert seen.track == ("tensorboard",)
    assert seen.job.fingerprint() == plain.job.fingerprint()


class _Failing:
    def __init__(self) -> None:
        self.calls = 0

    def write(self, history: History) -> None:
        self.calls += 1
        raise OSError("disk full")

    def close(self, finished: bool) -> None:
        raise AssertionError("a tracker that was given up is not asked again")


def test_a_tracker_that_fails_later_is_given_up_with_a_warning() -> None:
    failing = _Failing()
    several = Trackers({"mlflow": failing})
    with pytest.warns(UserWarning, match=r"the mlflow tracker stopped \(OSError: disk full\); history.csv has every"):
        several.write([])
    several.write([])
    several.close(finished=True)
    assert failing.calls == 1


def test_an_undefined_metric_is_not_a_number() -> None:
    row = {"epoch": 3, "train_loss": 0.5, "val_loss": "undefined (no event)", "best": True}
    assert scalars(row) == {"train_loss": 0.5, "best": 1.0}
