"""One fit: one model, one split, one seed, in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from marble import files, storage
from marble.bags.augment import generator
from marble.bags.tensors import map_file, to_bytes
from marble.devices import choose
from marble.errors import RunError
from marble.memory import keep_freed
from marble.models import BagModel
from marble.models.committee import Committee, build_members
from marble.models.zoo.probe import ClosedForm
from marble.tasks.base import Task
from marble.training.checkpoint import newest
from marble.training.closed_form import solve_fit
from marble.training.committee import MEMBERS, fit_members
from marble.training.job import FitJob
from marble.training.loop import Progress, TrainingLoop
from marble.training.result import FitResult
from marble.training.results import history_csv
from marble.training.share import Share, choose_share
from marble.training.trackers import TrackerName, open_trackers
from marble.version import VERSION

#: folder of the inner fits of a fit under way
INNER = "inner"


def fit(
    job: FitJob,
    folder: str | Path,
    progress: Progress | None = None,
    allow_drift: bool = False,
    track: Sequence[TrackerName] = (),
    device: str = "cpu",
) -> BagModel:
    """Train, or go on where a killed run stopped; return the model with the weights chosen on validation.

    Writes `checkpoints/`, `history.csv` and, at the end, `model.safetensors` and `fit.json` into `folder`. A folder
    that holds a finished fit of the same job is not trained again. `track` names trackers of the history; `device` is
    one that `devices.choose` knows, and the model comes back on it.
    """
    root, there = Path(folder), choose(device)
    keep_freed()
    torch.set_num_threads(job.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(int(generator(job.seed, "init").initial_seed() % 2**63))
    task = job.bound_task.build()
    model = build_members(job.model, job.dim, task.outputs, job.options, job.recipe.members)
    if _finished(root, job):
        _drop_checkpoints(root)
        return load_chosen(model, root).to(there)
    files.sweep(root / "checkpoints")
    _record_start(root, job, there.type, allow_drift)
    with open_trackers(track, root, job) as trackers:
        if isinstance(model, ClosedForm):  # seconds: a killed one is solved again, to the same bits
            result = solve_fit(job, task, model)
            files.publish(root / "history.csv", history_csv(result.history))
            trackers.write(result.history)
        else:
            alone = partial(fit, allow_drift=allow_drift, device=device)
            share = Share()
            if job.recipe.linear_term and job.recipe.share_folds and newest(root / "checkpoints") is None:
                share = choose_share(job, root / INNER, alone)
            if isinstance(model, Committee):
                result = fit_members(job, root, task, model.to(there), share, partial(alone, progress=progress))
                files.publish(root / "history.csv", history_csv(result.history))
                trackers.write(result.history)
            else:
                loop = TrainingLoop(job, root, task, model.to(there), progress, trackers, share)
                loop.run()
                result = loop.result()
    model.load_state_dict(result.tensors)
    _publish_result(root, job, task, model, result)
    return model.to(there)


def load_chosen(model: BagModel, root: Path) -> BagModel:
    """Put the chosen weights of a finished fit into `model`, after comparing their hash."""
    path = root / "model.safetensors"
    recorded = files.read_json(root / "fit.json")["model_sha256"]
    storage.fetch(path)
    if not path.exists() or files.sha256_file(path) != recorded:
        raise RunError("model.safetensors is missing or changed", where=root, hint="Train it again")
    tensors, _ = map_file(path)
    try:
        model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise RunError(f"weights do not fit the model: {error}", where=path) from None
    return model


def _finished(root: Path, job: FitJob) -> bool:
    path = root / "fit.json"
    return path.exists() and bool(files.read_json(path)["job"] == job.fingerprint())


def _record_start(root: Path, job: FitJob, device: str, allow_drift: bool) -> None:
    """A half-done fit goes on only as the same job of the same version on the same kind of device: anything else would
    be neither.
    """
    path = root / "job.json"
    now = {"job": job.fingerprint(), "version": VERSION, "torch": torch.__version__, "device": device}
    drift = False
    if path.exists():
        then = files.read_json(path)
        changed = [key for key in now if then.get(key) != now[key]]
        if changed and not allow_drift:
            raise RunError(
                f"started with another {' and '.join(changed)} than it would be resumed with",
                where=root,
                hint="Use another output folder, remove this one, or pass --allow-drift (it is stamped in the result)",
            )
        drift = bool(changed or then["drift"])
    files.publish_json(path, {**now, "drift": drift})


def _publish_result(root: Path, job: FitJob, task: Task, model: BagModel, result: FitResult) -> None:
    data = to_bytes(result.tensors, {"model": job.model, "options": job.options, "dim": job.dim})
    files.publish(root / "model.safetensors", data)
    chosen = next(row for row in result.history if row["epoch"] == result.best_epoch)
    files.publish_json(
        root / "fit.json",
        {
            "job": job.fingerprint(),
            "model_sha256": files.sha256_bytes(data),
            "parameters": model.parameter_count(),
            "epochs": result.epochs,
            "best_epoch": result.best_epoch,
            "val": {key.removeprefix("val_"): value for key, value in chosen.items() if key.startswith("val_")},
            "selected_by": task.select_by,
            "notes": result.notes,
            "device": model.device.type,
            "precision": result.precision,
            "drift": bool(files.read_json(root / "job.json")["drift"]),
            "seconds": result.seconds,
        },
    )
    _drop_checkpoints(root)


def _drop_checkpoints(root: Path) -> None:
    """They served to resume, inner fits to choose, members are joined; a finished fit needs only the chosen weights."""
    for name in ("checkpoints", INNER, MEMBERS):
        files.remove_folder(root / name)
