"""The one number a map is about: the logit of a class, or the risk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from marble.errors import InputError
from marble.specs import unknown_choice
from marble.tasks.base import Task
from marble.tasks.discrete import survival_curve


@dataclass(frozen=True)
class Score:
    """A differentiable number made from logits (outputs,), and its name."""

    name: str
    of: Callable[[Tensor], Tensor]


def score_of(task: Task, target: str | None = None) -> Score:
    """The score of class `target`, or the risk of a survival task (then `target` stays None)."""
    if task.name == "survival":
        if target not in (None, "risk"):
            raise InputError(f"a survival run explains its risk, not '{target}'")
        if task.outputs == 1:
            return Score("risk", lambda logits: logits[0])
        return Score("risk", lambda logits: -survival_curve(logits).sum())
    classes = [column.removeprefix("p_") for column in task.columns]
    if target is None:
        raise InputError("name the class to explain", hint=f"One of {', '.join(classes)}")
    if target not in classes:
        raise InputError(unknown_choice("class", target, classes))
    if task.outputs == 1:  # one yes-or-no question: the first class's logit is minus the second's
        sign = 1 if target == classes[1] else -1
        return Score(f"logit of {target}", lambda logits: sign * logits[0])
    return logit(classes.index(target), target)


def logit(index: int, name: str = "") -> Score:
    """The score of one output as it is."""
    return Score(f"logit of {name or index}", lambda logits: logits[index])
