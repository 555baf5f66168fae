"""Models x splits through an executor: every planned run ends done or failed, and can be started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from marble.compute import Done, Executor
from marble.training.run import PlannedRun, execute


@dataclass(frozen=True)
class RunOutcome:
    """How one planned run ended."""

    planned: PlannedRun
    record: dict[str, Any] | None
    reason: str | None = None
    trace: str = ""

    @property
    def ok(self) -> bool:
        return self.record is not None


def run_all(
    planned: Sequence[PlannedRun], executor: Executor, done: Callable[[RunOutcome], None] | None = None
) -> list[RunOutcome]:
    """Execute all planned runs; `done` is told of each as it ends. A failing run does not stop the others."""
    outcomes = []
    for outcome in _outcomes(planned, executor):
        outcomes.append(outcome)
        if done is not None:
            done(outcome)
    order = {run.folder: place for place, run in enumerate(planned)}
    return sorted(outcomes, key=lambda outcome: order[outcome.planned.folder])


def _outcomes(planned: Sequence[PlannedRun], executor: Executor) -> Iterator[RunOutcome]:
    for ended in executor.map(execute, planned):
        if isinstance(ended, Done):
            yield RunOutcome(ended.item, ended.result)
        else:
            yield RunOutcome(ended.item, None, ended.reason, ended.trace)
