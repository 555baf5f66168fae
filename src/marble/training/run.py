"""`Run`: the folder of one fit, from its plan to its record."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from marble import files
from marble.bags.provenance import Provenance
from marble.bags.store import BagStore
from marble.errors import RunError
from marble.models import BagModel, build
from marble.specs import Spec
from marble.targets import SurvivalTime
from marble.tasks.base import Task, Undefined
from marble.tasks.baseline import BreslowBaseline
from marble.tasks.classification_metrics import youden_threshold
from marble.training.evaluate import CasePrediction, predict_cases
from marble.training.fit import fit, load_chosen
from marble.training.job import CaseSpec, FitJob, TaskSpec
from marble.training.loop import Progress
from marble.training.order_count import choose_orders
from marble.training.results import FORMAT, predictions_csv, read_run
from marble.training.trackers import Tracker
from marble.version import VERSION


class HeldOut(Spec):
    """The held-out patients, in a file of their own that only the evaluation opens."""

    cases: tuple[CaseSpec, ...]


class PlannedRun(Spec):
    """A fit that is to be done: what training may know, and where the evaluation finds the rest.

    Args:
        folder: the run's folder.
        job: everything training may know.
        test: path of the held-out patients' file.
        about: what tables say of the run: experiment, model key, repeat, counts of slides.
        allow_drift: go on with a run that was started by another version.
        track: trackers of the history; not part of the job, because they have no say in the result.
    """

    folder: str
    job: FitJob
    test: str
    about: dict[str, Any] = Field(default_factory=dict)
    allow_drift: bool = False
    track: tuple[Tracker, ...] = ()


def execute(planned: PlannedRun, progress: Progress | None = None) -> dict[str, Any]:
    """Fit, choose, and only then evaluate on the held-out patients; return the run's record. Skips what is done."""
    root = Path(planned.folder)
    if _is_done(planned):
        return read_run(root)
    model = fit(planned.job, root, progress, planned.allow_drift, planned.track)
    test = HeldOut.parse(files.read_json(planned.test), where=planned.test)
    return _evaluate(planned, root, model, test)


def _is_done(planned: PlannedRun) -> bool:
    root = Path(planned.folder)
    if not (root / "run.json").exists():
        return False
    record = read_run(root)
    return bool(
        record["job"] == planned.job.fingerprint()
        and record["sha256"]["test"] == files.sha256_file(planned.test)
        and record["about"] == planned.about
        and files.sha256_file(root / "predictions.csv") == record["sha256"]["predictions"]
    )


def _evaluate(planned: PlannedRun, root: Path, model: BagModel, test: HeldOut) -> dict[str, Any]:
    job, store, task = planned.job, BagStore(planned.job.store), planned.job.task.build()
    parts = {"val": predict_cases(model, store, job.val, task, job.orders)}
    chosen = choose_orders([row.order_sd for row in parts["val"]], job.orders, job.order_tolerance)
    if chosen.orders < job.orders:
        parts = {"val": predict_cases(model, store, job.val, task, chosen.orders)}
    if job.task.name == "survival":  # the baseline hazard and the risk groups' cut come from training patients
        parts = {"train": predict_cases(model, store, job.train, task, chosen.orders), **parts}
    parts["test"] = predict_cases(model, store, test.cases, task, chosen.orders)
    predictions = files.publish(root / "predictions.csv", predictions_csv(parts, task))
    done = files.read_json(root / "fit.json")
    record = {
        "format": FORMAT,
        "about": planned.about,
        "job": job.fingerprint(),
        "model": {
            "name": job.model,
            "options": job.options,
            "dim": job.dim,
            "parameters": done["parameters"],
            "recipe": job.recipe_name,
        },
        "task": job.task.model_dump(mode="json"),
        "split": job.split,
        "seed": job.seed,
        "orders": chosen.orders,
        "order_choice": chosen.record(),
        "train_cases": sorted(case.case_id for case in job.train),
        "bags": store.common().model_dump(mode="json"),
        "calibration": _calibration(parts, task),
        "fit": {key: done[key] for key in ("epochs", "best_epoch", "val", "selected_by", "notes", "drift")},
        "seconds": done["seconds"],
        "sha256": {
            "model": done["model_sha256"],
            "predictions": files.sha256_file(predictions),
            "history": files.sha256_file(root / "history.csv"),
            "test": files.sha256_file(planned.test),
        },
        "versions": {"marble": VERSION, "torch": torch.__version__, "python": platform.python_version()},
        "threads": job.threads,
    }
    files.publish_json(root / "run.json", record)
    return record


def _calibration(parts: dict[str, list[CasePrediction]], task: Task) -> dict[str, Any]:
    """What turns scores into decisions: chosen on training and validation patients, never on test ones."""
    if task.name == "survival":
        risks = [row.readout["risk"] for row in parts["train"]]
        outcomes = [row.case.target.value() for row in parts["train"]]
        known = [outcome for outcome in outcomes if isinstance(outcome, SurvivalTime)]
        baseline = BreslowBaseline.fit(risks, [o.time for o in known], [o.event for o in known])
        return {
            "median_risk": float(torch.tensor(risks).median()),
            "baseline_times": [float(t) for t in baseline.times],
            "baseline_log_hazard": [float(h) for h in baseline.log_hazard],
        }
    if len(task.columns) == 2:
        targets = [row.case.target.value() for row in parts["val"]]
        positive = [row.readout[task.columns[1]] for row in parts["val"]]
        threshold = youden_threshold([f"p_{target}" == task.columns[1] for target in targets], positive)
        assert not isinstance(threshold, Undefined)  # selection on validation was possible, so both classes are there
        return {"threshold": threshold}
    return {}


@dataclass(frozen=True)
class Run:
    """A finished run, opened for use."""

    folder: Path
    record: dict[str, Any]

    @staticmethod
    def open(folder: str | Path) -> Run:
        return Run(Path(folder), read_run(folder))

    @property
    def task(self) -> Task:
        return TaskSpec.parse(self.record["task"], where=self.folder / "run.json").build()

    @property
    def provenance(self) -> Provenance:
        """How the bags were made that this run was trained on."""
        return Provenance.parse(self.record["bags"], where=self.folder / "run.json")

    def model(self) -> BagModel:
        """The chosen model, in evaluation mode."""
        about = self.record["model"]
        model = build(about["name"], about["dim"], self.task.outputs, **about["options"])
        if files.read_json(self.folder / "fit.json")["model_sha256"] != self.record["sha256"]["model"]:
            raise RunError("fit.json belongs to another fit than run.json", where=self.folder, hint="Run it again")
        load_chosen(model, self.folder)
        return model.eval()
