"""Every task by name. Adding one is a file in this folder and a line in `TASKS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from marble.errors import SpecError
from marble.pointers import pointed_at
from marble.specs import unknown_choice
from marble.tasks.base import Task

#: name -> "module:class"; imported only when built
TASKS: dict[str, str] = {
    "classification": "marble.tasks.classification:Classification",
    "survival": "marble.tasks.survival:Survival",
    "regression": "marble.tasks.regression:Regression",
}


def task_class(name: str) -> type[Task]:
    """The class behind a name, or an error with the valid names."""
    if name not in TASKS:
        raise SpecError(unknown_choice("task", name, list(TASKS)))
    found: type[Task] = pointed_at(TASKS[name])
    return found


def build_task(name: str, choices: Mapping[str, Any]) -> Task:
    """The task called `name`, with those of an experiment's choices that concern it."""
    return task_class(name).of(choices)


def _known(name: str) -> str:
    if name not in TASKS:
        raise ValueError(unknown_choice("task", name, list(TASKS)))
    return name


#: a field of a spec that names a task
TaskName = Annotated[str, AfterValidator(_known)]
