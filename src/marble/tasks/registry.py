"""Every task by name. Adding one is a file in this folder and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marble.errors import SpecError
from marble.specs import unknown_choice
from marble.tasks.base import Task
from marble.tasks.classification import Classification
from marble.tasks.regression import Regression
from marble.tasks.survival import Survival

TASKS: dict[str, type[Task]] = {task.name: task for task in (Classification, Survival, Regression)}


def build_task(name: str, choices: Mapping[str, Any]) -> Task:
    """The task called `name`, with those of an experiment's choices that concern it."""
    return task_class(name).of(choices)


def task_class(name: str) -> type[Task]:
    if name not in TASKS:
        raise SpecError(unknown_choice("task", name, sorted(TASKS)))
    return TASKS[name]
