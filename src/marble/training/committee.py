"""Fits of a committee: every member is a fit of its own with a seed of its own, and is kept until all are there."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from marble import files
from marble.bags.store import BagStore
from marble.models import BagModel
from marble.models.committee import Committee
from marble.tasks.base import Task
from marble.training.evaluate import history_row, validate
from marble.training.job import FitJob
from marble.training.result import FitResult
from marble.training.share import Share

#: folder of the members of a fit under way
MEMBERS = "members"
#: between the seeds of two members; those of two repeats are 1 apart
SEEDS_APART = 1000


def fit_members(
    job: FitJob, root: Path, task: Task, committee: Committee, share: Share, fit: Callable[[FitJob, Path], BagModel]
) -> FitResult:
    """Train what is not trained yet, and put all together. The first member is what the fit of one network would be."""
    folders = [root / MEMBERS / str(number) for number in range(len(committee.members))]
    for number, (folder, member) in enumerate(zip(folders, committee.each(), strict=True)):
        member.load_state_dict(fit(member_job(job, number), folder).state_dict())
    committee.join(share.value)
    done = [files.read_json(folder / "fit.json") for folder in folders]
    targets = {slide: case.target.value() for case in job.train for slide in case.slides}
    patients = {slide: case.case_id for case in job.train for slide in case.slides}
    criterion = task.criterion(targets, patients)
    metrics, val_loss = validate(committee, BagStore(job.store), job.val, task, criterion, job.val_orders)
    losses = [_train_loss(folder, one["best_epoch"]) for folder, one in zip(folders, done, strict=True)]
    best = max(one["best_epoch"] for one in done)
    row = history_row(best, sum(losses) / len(losses), metrics, val_loss) | {"best": True}
    return FitResult(
        tensors=committee.state_dict(),
        epochs=max(one["epochs"] for one in done),
        best_epoch=best,
        history=[row],
        notes=[f"the mean of {len(done)} networks that differ in their seed", *done[0]["notes"], *_note(share)],
        seconds=sum(one["seconds"] for one in done),
        precision=done[0]["precision"],
    )


def member_job(job: FitJob, number: int) -> FitJob:
    """The fit of one member: the same job with a seed of its own, and all of its network."""
    recipe = replace(job.recipe, members=1, share_folds=0)
    return job.model_copy(update={"recipe": recipe, "seed": job.seed + number * SEEDS_APART})


def _train_loss(folder: Path, epoch: int) -> float:
    """Of the epoch that a member kept."""
    with (folder / "history.csv").open(encoding="utf-8", newline="") as rows:
        return next(float(row["train_loss"]) for row in csv.DictReader(rows) if row["epoch"] == str(epoch))


def _note(share: Share) -> list[str]:
    return [share.note] if share.note else []
