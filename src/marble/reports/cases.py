"""The cases worth a look: those that were called wrong, the surest first; or, without classes, the extreme ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from marble.reports.collect import ModelResults, Repeat, Results
from marble.tasks.base import Task
from marble.training.results import StoredCase, read_cases

SHOWN = 12


def key_of(*parts: object) -> str:
    """A short name that says nothing about what it names: the viewer's addresses are made of these."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Case:
    """One test case as one run sees it."""

    model: str
    repeat: int
    folder: Path
    job: str
    case_id: str
    slide_ids: tuple[str, ...]
    truth: str
    said: str
    number: float
    wrong: bool

    def path(self, slide_id: str) -> str:
        """Where `marble view` shows the slide, with this run chosen."""
        return f"/slide/{key_of('slide', slide_id)}#{self.job}"


def errors(results: Results) -> list[Case]:
    """Test cases of every model that were called wrong, the surest first; none for a task without classes."""
    found = [case for model in results.models for case in _cases(results.task, model) if case.wrong]
    return sorted(found, key=lambda case: (-case.number, case.case_id, case.model))


def extremes(results: Results, each: int = 2) -> list[Case]:
    """The test cases with the highest and the lowest numbers of the reference model (or the first)."""
    ranked = sorted(_cases(results.task, results.reference or results.models[0]), key=lambda case: -case.number)
    if len(ranked) <= 2 * each:
        return ranked
    return ranked[:each] + ranked[-each:]


def _cases(task: Task, model: ModelResults) -> list[Case]:
    return [
        _case(task, model.key, repeat, stored)
        for repeat in model.repeats
        for stored in read_cases(repeat.folder, task)
        if stored.part == "test"
    ]


def _case(task: Task, model: str, repeat: Repeat, stored: StoredCase) -> Case:
    decision = task.decide(stored.readout, repeat.calibration)
    said, value = task.headline(stored.readout, decision)
    return Case(
        model, repeat.number, repeat.folder, str(repeat.record["job"]), stored.case_id, stored.slide_ids,
        task.target_text(stored.target), said, value, task.is_wrong(stored.target, decision),
    )  # fmt: skip
