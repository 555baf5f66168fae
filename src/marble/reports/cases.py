"""The cases worth a look: those that were wrong, the worst first; and the extreme ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from marble.reports.collect import ModelResults, Repeat, Results
from marble.targets import Target
from marble.tasks.base import Task, in_unit
from marble.training.results import StoredCase, read_cases

SHOWN = 12


def key_of(*parts: object) -> str:
    """A short name that says nothing about what it names: the viewer's addresses are made of these."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CaseCalled:
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
    miss: float | None = None  # predicted minus true, of a task that predicts a number

    def path(self, slide_id: str) -> str:
        """Where `marble view` shows the slide, with this run chosen."""
        return f"/slide/{key_of('slide', slide_id)}#{self.job}"


def errors(results: Results) -> list[CaseCalled]:
    """Test cases of every model that were called wrong, the surest first.

    Of predicted numbers, which are all more or less wrong: every test case of the reference, the worst first.
    """
    missed = [case for case in _cases(results, results.reference or results.models[0]) if case.miss is not None]
    if missed:
        return sorted(missed, key=lambda case: (-abs(case.miss or 0.0), case.case_id))
    found = [case for model in results.models for case in _cases(results, model) if case.wrong]
    return sorted(found, key=lambda case: (-case.number, case.case_id, case.model))


def extremes(results: Results, each: int = 2) -> list[CaseCalled]:
    """The test cases with the highest and the lowest numbers of the reference model (or the first)."""
    ranked = sorted(_cases(results, results.reference or results.models[0]), key=lambda case: -case.number)
    if len(ranked) <= 2 * each:
        return ranked
    return ranked[:each] + ranked[-each:]


def _cases(results: Results, model: ModelResults) -> list[CaseCalled]:
    return [
        _case(results, model.key, repeat, stored)
        for repeat in model.repeats
        for stored in read_cases(repeat.folder, repeat.task)
        if stored.part == "test"
    ]


def _case(results: Results, model: str, repeat: Repeat, stored: StoredCase) -> CaseCalled:
    task, unit = repeat.task, results.unit
    decision = task.decide(stored.readout, repeat.calibration)
    said, value = task.headline(stored.readout, decision)
    miss = miss_of(task, stored.target, stored.readout)
    return CaseCalled(
        model, repeat.number, repeat.folder, str(repeat.record["job"]), stored.case_id, stored.slide_ids,
        task.target_text(stored.target, unit), said if miss is None else in_unit(said, unit), value,
        task.is_wrong(stored.target, decision), miss,
    )  # fmt: skip


def miss_of(task: Task, target: Target, readout: Mapping[str, float]) -> float | None:
    """Predicted minus true; None for a task that predicts no number."""
    numbers = task.numbers([target], {name: [value] for name, value in readout.items()})
    return None if numbers is None else float(numbers[1][0] - numbers[0][0])
