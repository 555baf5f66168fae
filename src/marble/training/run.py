"""One run from its plan to its record: fit, choose, evaluate, write."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from marble import files, storage
from marble.bags.store import BagStore
from marble.errors import MarbleError, RunError
from marble.models import BagModel
from marble.specs import Spec
from marble.training.evaluate import answered, calibrated, predict_cases
from marble.training.fit import fit
from marble.training.job import CaseSpec, FitJob
from marble.training.loop import Progress
from marble.training.membership import members_of
from marble.training.order_count import choose_orders
from marble.training.results import FORMAT, predictions_csv, read_predictions, read_run, sealed
from marble.training.trackers import TrackerName
from marble.version import VERSION


class HeldOut(Spec):
    """The held-out patients, in a file of their own that only the evaluation opens.

    Args:
        cases: who they are.
        bags_sha256: over their bags: a run whose test slides were extracted again is evaluated again.
    """

    cases: tuple[CaseSpec, ...]
    bags_sha256: str = ""


class PlannedRun(Spec):
    """A fit that is to be done: what training may know, and where the evaluation finds the rest.

    Args:
        folder: the run's folder.
        job: everything training may know.
        test: path of the held-out patients' file.
        about: what tables say of the run: experiment, model key, repeat, counts of slides.
        allow_drift: go on with a run that was started by another version.
        track: trackers of the history; not part of the job, because they have no say in the result.
        device: where it runs; not part of the job, but its kind is in the record, and a fit goes on only on that kind.
    """

    folder: str
    job: FitJob
    test: str
    about: dict[str, Any] = Field(default_factory=dict)
    allow_drift: bool = False
    track: tuple[TrackerName, ...] = ()
    device: str = "cpu"


def execute(planned: PlannedRun, progress: Progress | None = None) -> dict[str, Any]:
    """Fit, choose, and only then evaluate on the held-out patients; return the run's record. Skips what is done."""
    root = storage.location(planned.folder)
    storage.pull(root)
    if _is_done(planned):
        return read_run(root)
    model = fit(planned.job, root, progress, planned.allow_drift, planned.track, planned.device)
    test = HeldOut.parse(files.read_json(storage.location(planned.test)), where=planned.test)
    _refuse_seen(planned, test)
    return _evaluate(planned, root, model, test)


def _refuse_seen(planned: PlannedRun, test: HeldOut) -> None:
    """Whatever made the file of the held-out patients: a patient that the fit has seen is not tested."""
    seen = {case.case_id for case in (*planned.job.train, *planned.job.val)}
    both = sorted(seen & {case.case_id for case in test.cases})
    if both:
        what = f"held-out patient '{both[0]}' is in the training or validation of this run"
        more = f" (and {len(both) - 1} more)" if len(both) > 1 else ""
        raise RunError(what + more, where=planned.test, hint="Start the experiment again, which writes this file anew")


def _is_done(planned: PlannedRun) -> bool:
    root = storage.location(planned.folder)
    if not (root / "run.json").exists():
        return False
    try:
        record = read_run(root)
        read_predictions(root)
    except MarbleError:  # an older format, a broken seal, lost or changed predictions: evaluated again
        return False
    return bool(
        record["job"] == planned.job.fingerprint()
        and record["sha256"]["test"] == files.sha256_file(storage.location(planned.test))
        and record["about"] == planned.about
    )


def _evaluate(planned: PlannedRun, root: Path, model: BagModel, test: HeldOut) -> dict[str, Any]:
    job, store, task = planned.job, BagStore(planned.job.store), planned.job.bound_task.build()
    cases = {"train": job.train, "val": job.val}
    val = predict_cases(model, store, job.val, task, job.orders)
    chosen = choose_orders([row.order_sd for row in val], job.orders, job.order_tolerance)
    wanted = [part for part in cases if part == "val" or part in task.calibrated_on]
    parts = {
        part: val
        if part == "val" and chosen.orders == job.orders
        else predict_cases(model, store, cases[part], task, chosen.orders)
        for part in wanted
    }
    calibration = task.calibrate({part: answered(parts[part]) for part in task.calibrated_on})
    parts["test"] = predict_cases(model, store, test.cases, task, chosen.orders)
    parts = {part: calibrated(rows, task, calibration) for part, rows in parts.items()}
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
            "standardised": job.recipe.standardise,
            "linear_term": job.recipe.linear_term,
            "members": job.recipe.members,
            "train_slides": sum(len(case.slides) for case in job.train),
        },
        "task": job.bound_task.model_dump(mode="json"),
        "split": job.split,
        "seed": job.seed,
        "orders": chosen.orders,
        "order_choice": chosen.record(),
        "parts": members_of({"train": job.train, "val": job.val, "test": test.cases}, store),
        "bags": store.common().model_dump(mode="json"),
        "calibration": calibration,
        "fit": {key: done[key] for key in ("epochs", "best_epoch", "val", "selected_by", "notes", "drift")},
        "seconds": done["seconds"],
        "sha256": {
            "model": done["model_sha256"],
            "predictions": files.sha256_file(predictions),
            "history": files.sha256_file(root / "history.csv"),
            "test": files.sha256_file(storage.location(planned.test)),
        },
        "versions": {"marble": VERSION, "torch": torch.__version__, "python": platform.python_version()},
        "threads": job.threads,
        "device": done["device"],
        "precision": done["precision"],
    }
    record = sealed(record)
    files.publish_json(root / "run.json", record)
    return record
