"""The one number a map is about: the logit of a class, or the risk."""

from __future__ import annotations

from marble.tasks.base import Calibration, Score, Task

__all__ = ["Score", "logit", "score_of"]


def score_of(task: Task, target: str | None = None, calibration: Calibration | None = None) -> Score:
    """The score of class `target`; of a task without classes the only one there is (then `target` stays None).

    With the run's calibration it counts from where the run's own answers do; differences are the same without.
    """
    return task.score(target, calibration)


def logit(index: int, name: str = "") -> Score:
    """The score of one output as it is."""
    return Score(f"logit of {name or index}", lambda logits: logits[index])
