"""What runs said of a slide's case when they were evaluated, one by one or several together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble.reports.cases import miss_of
from marble.targets import Target
from marble.tasks.base import Calibration, Task
from marble.tasks.pooling import Pooled, pool
from marble.training.job import TaskSpec
from marble.training.results import read_cases


@dataclass(frozen=True)
class StoredPrediction:
    """One case as one run, or several together, see it."""

    part: str
    target: Target
    readout: dict[str, float]
    predicted: str | None  # None for a task that calls no class
    text: str
    number: float
    wrong: bool
    miss: float | None  # predicted minus true, of a task that predicts a number
    members: int = 1
    sd: float = 0.0  # of the number, over the members


def stored_predictions(folder: Path, record: dict[str, Any]) -> dict[str, StoredPrediction]:
    """By slide id."""
    task, calibration = TaskSpec.parse(record["task"], where=folder).build(), record["calibration"]
    found: dict[str, StoredPrediction] = {}
    for case in read_cases(folder, task):  # as the run says it: not made comparable before it is set beside others
        alone = Pooled(case.readout, task.decide(case.readout, calibration), calibration, 1, 0.0)
        found |= dict.fromkeys(case.slide_ids, _told(task, case.part, case.target, alone))
    return found


def said_together(task: Task, said: Sequence[tuple[StoredPrediction, Calibration]]) -> StoredPrediction:
    """What several runs say of a case that all of them held out, averaged in logits."""
    first = said[0][0]
    pooled = pool(task, [stored.readout for stored, _ in said], [calibration for _, calibration in said])
    return _told(task, first.part, first.target, pooled)


def _told(task: Task, part: str, target: Target, said: Pooled) -> StoredPrediction:
    text, number = task.headline(said.readout, said.decision)
    return StoredPrediction(
        part, target, said.readout, said.decision.label, text, number, task.is_wrong(target, said.decision),
        miss_of(task, target, said.readout), said.members, said.sd,
    )  # fmt: skip
