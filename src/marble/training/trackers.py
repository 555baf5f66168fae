"""Trackers of history.csv, for those who watch training in TensorBoard or MLflow.

history.csv stays the record. A tracker repeats its numbers, epoch by epoch, below the run's folder; it has no say in
weights or predictions, and a resumed run repeats no epoch twice. A tracker that cannot be opened is an error before
training starts; one that fails later is given up with a warning, and training goes on.

    tensorboard/    event files, written anew from the first epoch whenever training starts or resumes
    mlruns/         MLflow's file store; or the server that the user himself named in MLFLOW_TRACKING_URI
"""

# Event files and MLflow's store are written by those libraries, in formats of their own that grow in place:
# `files.publish` cannot be used for them. Nothing reads them back but the tools they are made for.

from __future__ import annotations

import importlib
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from marble.compute import describe
from marble.errors import MarbleError, UnavailableError
from marble.training.job import FitJob

TrackerName: TypeAlias = Literal["tensorboard", "mlflow"]
History: TypeAlias = Sequence[Mapping[str, Any]]

#: what each tracker imports, and the package that brings it
_NEEDS: dict[TrackerName, tuple[str, str]] = {
    "tensorboard": ("torch.utils.tensorboard", "tensorboard"),
    "mlflow": ("mlflow", "mlflow-skinny"),
}


class Tracker(Protocol):
    """Something that shows a history elsewhere."""

    def write(self, history: History) -> None:
        """Repeat those epochs of the whole history so far that the tracker does not hold yet."""

    def close(self, finished: bool) -> None:
        """Training is over: at its end, or by an error."""


class TensorBoardTracker:
    """Event files in `<run>/tensorboard`."""

    def __init__(self, root: Path) -> None:
        folder = root / "tensorboard"
        for old in folder.glob("events.out.tfevents.*"):  # written again from the history, so no epoch is there twice
            old.unlink()
        self._writer = _load("tensorboard").SummaryWriter(str(folder))
        self._epochs = 0

    def write(self, history: History) -> None:
        for row in history[self._epochs :]:
            for name, value in scalars(row).items():
                self._writer.add_scalar(name, value, int(row["epoch"]))
        self._epochs = len(history)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()


class MlflowTracker:
    """One MLflow run per job, found again by the job's fingerprint."""

    def __init__(self, root: Path, job: FitJob) -> None:
        mlflow = _load("mlflow")
        self._metric = mlflow.entities.Metric
        local = (root / "mlruns").resolve().as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or local)
        self._run = self._find_or_create(root, job)
        self._client.update_run(self._run, status="RUNNING")
        known = self._client.get_run(self._run).data.metrics
        self._held = {(name, one.step) for name in known for one in self._client.get_metric_history(self._run, name)}

    def write(self, history: History) -> None:
        now = int(time.time() * 1000)
        for row in history:
            epoch = int(row["epoch"])
            new = {name: value for name, value in scalars(row).items() if (name, epoch) not in self._held}
            if new:
                metrics = [self._metric(name, value, now, epoch) for name, value in new.items()]
                self._client.log_batch(self._run, metrics=metrics)
                self._held |= {(name, epoch) for name in new}

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, status="FINISHED" if finished else "FAILED")

    def _find_or_create(self, root: Path, job: FitJob) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "marble"
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        runs = self._client.search_runs([experiment], f"tags.marble_job = '{job.fingerprint()}'", max_results=1)
        if not runs:
            tags = {"marble_job": job.fingerprint(), "model": job.model, "seed": str(job.seed), "split": job.split}
            runs = [self._client.create_run(experiment, tags=tags, run_name=f"{root.parent.name}/{root.name}")]
        return str(runs[0].info.run_id)


class Trackers:
    """All trackers of one run; each is given up with a warning when it fails, because training must go on."""

    def __init__(self, opened: Mapping[str, Tracker] | None = None) -> None:
        self._open = dict(opened or {})

    def write(self, history: History) -> None:
        for name, tracker in list(self._open.items()):
            try:
                tracker.write(history)
            except Exception as error:  # whatever a foreign library or its server does
                self._give_up(name, error)

    def close(self, finished: bool) -> None:
        for name, tracker in list(self._open.items()):
            try:
                tracker.close(finished)
            except Exception as error:
                self._give_up(name, error)

    def _give_up(self, name: str, error: Exception) -> None:
        del self._open[name]
        warnings.warn(f"the {name} tracker stopped ({describe(error)}); history.csv has every epoch", stacklevel=3)


def require(track: Sequence[TrackerName]) -> None:
    """Refuse, with the command to type, what needs a package that is not here."""
    for name in track:
        _load(name)


@contextmanager
def open_trackers(track: Sequence[TrackerName], root: Path, job: FitJob) -> Iterator[Trackers]:
    """Open the trackers named in `track`, and close them when training ends, however it ends."""
    require(track)
    opened: dict[str, Tracker] = {}
    for name in dict.fromkeys(track):
        try:
            opened[name] = TensorBoardTracker(root) if name == "tensorboard" else MlflowTracker(root, job)
        except MarbleError:
            raise
        except Exception as error:
            raise UnavailableError(
                f"the {name} tracker cannot be opened: {describe(error)}",
                where=root,
                hint="Take it out of `track`, or mend what it names",
            ) from error
    trackers = Trackers(opened)
    try:
        yield trackers
    except BaseException:
        trackers.close(finished=False)
        raise
    trackers.close(finished=True)


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one row of the history; an undefined metric is text, and has none."""
    return {name: float(value) for name, value in row.items() if name != "epoch" and isinstance(value, int | float)}


def _load(name: TrackerName) -> Any:
    module, package = _NEEDS[name]
    if name == "mlflow":
        # MLflow reports its use to its makers unless told not to before it is imported, and takes a plain folder as a
        # store only when told to. Who sets these variables himself is obeyed.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnavailableError(
            f'track = ["{name}"] needs the package {package}, which is not installed ({error})',
            hint=f"Type `pip install {package}`, or take it out of `track`",
        ) from None
