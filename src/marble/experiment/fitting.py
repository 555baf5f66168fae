"""Whether a model's options fit each other and the bags, before anything is trained."""

from __future__ import annotations

from typing import Any

import torch

from marble.bags.bag import Bag, Level
from marble.bags.record import BagRecord
from marble.errors import InputError, MarbleError, SpecError
from marble.experiment.spec import ModelSpec
from marble.identifiers import printable
from marble.models import build
from marble.tasks.base import Task
from marble.training.job import TaskSpec


def task_of(spec: TaskSpec, where: object) -> Task:
    """The task as the cohort's classes allow it; what does not go with them is a fault of the experiment file."""
    try:
        return spec.build()
    except MarbleError as error:
        raise SpecError(error.what, where=where, hint=error.hint) from None


def check_fitting(model: ModelSpec, options: dict[str, Any], record: BagRecord, task: Task, where: object) -> None:
    """Refuse what the model would refuse when it is trained; it is built without memory, and asked for its levels."""
    cell, first = torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    levels = [Level(torch.zeros(1, level.dim), cell, first if k > 0 else None) for k, level in enumerate(record.levels)]
    try:
        with torch.device("meta"):
            built = build(model.name, record.levels[-1].dim, task.outputs, **options)
        built.levels_read(Bag(record.slide_id, levels))
        if built.output_per_class and task.outputs < len(task.class_names):
            raise InputError(
                f"its instance loss needs an output per class, but with this class_loss {len(task.class_names)} classes"
                f" have {task.outputs}",
                hint='Take another class_loss, such as "cross-entropy", or another model',
            )
    except MarbleError as error:
        place = f"model '{printable(model.key)}'" if where is None else f"{where}, model '{printable(model.key)}'"
        raise SpecError(error.what, where=place, hint=error.hint) from None
