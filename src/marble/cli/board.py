"""Where a batch of runs stands: one row per model, from what has ended so far."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from marble import storage
from marble.training.protocol import RunOutcome
from marble.training.results import validation_of
from marble.training.run import PlannedRun


@dataclass(frozen=True)
class EpochDone:
    """The last epoch that a fit under way has finished."""

    epoch: int
    of: int
    loss: float | None
    metric: float | None  # on validation
    seconds_left: float | None  # of this fit, if it takes all its epochs


@dataclass(frozen=True)
class BoardRow:
    """One model (or one candidate value of it): its fits, and the validation metric of those that ended well."""

    model: str
    total: int
    done: int = 0
    failed: int = 0
    running: tuple[int, ...] = ()  # repeats
    epochs: tuple[EpochDone | None, ...] = ()  # of each that is running; None before its first epoch has ended
    mean: float | None = None
    sd: float | None = None  # None for fewer than two fits
    elapsed_s: float = 0.0  # spent on its fits since the batch was started
    remaining_s: float | None = None  # of fitting; None until a fit has shown what one costs

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed


@dataclass
class Board:
    """Keeps count of `planned` runs. Workers take them in order, so the first that have not ended are running."""

    planned: Sequence[PlannedRun]
    workers: int = 1
    clock: Callable[[], float] = time.monotonic
    _ended: dict[str, RunOutcome] = field(default_factory=dict, init=False)
    _began: dict[str, float] = field(default_factory=dict, init=False)
    _took_s: dict[str, float] = field(default_factory=dict, init=False)
    _first: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)  # folder -> (epoch seen, when)

    def __post_init__(self) -> None:
        self.start_s = self.clock()
        self._note_running()

    @property
    def metric(self) -> str:
        """The validation metric that chooses checkpoints."""
        return self.planned[0].job.task.build().select_by

    def ended(self, outcome: RunOutcome) -> None:
        folder = outcome.planned.folder
        self._took_s[folder] = self.clock() - self._began.get(folder, self.clock())
        self._ended[folder] = outcome
        self._note_running()

    def rows(self) -> list[BoardRow]:
        """A row per model, in the order of the plan."""
        names = list(dict.fromkeys(name_of(run) for run in self.planned))
        return [self._row(name, [run for run in self.planned if name_of(run) == name]) for name in names]

    def elapsed_s(self) -> float:
        return self.clock() - self.start_s

    def remaining_s(self) -> float | None:
        """Until the whole batch has ended; None until every model with fits left has shown what one costs."""
        known = [row.remaining_s for row in self.rows()]
        numbers = [seconds for seconds in known if seconds is not None]
        return sum(numbers) / self.workers if len(numbers) == len(known) else None

    def _row(self, name: str, runs: Sequence[PlannedRun]) -> BoardRow:
        outcomes = [self._ended[run.folder] for run in runs if run.folder in self._ended]
        records = [outcome.record for outcome in outcomes if outcome.record is not None]
        now_running = {run.folder for run in self._running()}
        running = [run for run in runs if run.folder in now_running]
        spent_s = sum(self.clock() - self._began[run.folder] for run in running)
        values = [value for value in map(validation_of, records) if value is not None]
        left = len(runs) - len(outcomes)
        remaining_s = 0.0 if left == 0 else None
        if left and records:
            remaining_s = max(0.0, left * fmean(float(record["seconds"]) for record in records) - spent_s)
        return BoardRow(
            model=name,
            total=len(runs),
            done=len(records),
            failed=len(outcomes) - len(records),
            running=tuple(int(run.about["repeat"]) for run in running),
            epochs=tuple(self._epoch(run) for run in running),
            mean=fmean(values) if values else None,
            sd=stdev(values) if len(values) > 1 else None,
            elapsed_s=sum(self._took_s.get(run.folder, 0.0) for run in runs) + spent_s,
            remaining_s=remaining_s,
        )

    def _epoch(self, run: PlannedRun) -> EpochDone | None:
        """Where a fit is, from the history it publishes after every epoch, whichever process it runs in."""
        rows = _history(storage.location(run.folder) / "history.csv")
        if not rows:
            return None
        last, of = rows[-1], run.job.recipe.epochs
        done = int(last["epoch"])
        first = self._first.setdefault(run.folder, (done, self.clock()))  # a resumed fit has done some before
        since = done - first[0]
        left = (of - done) * (self.clock() - first[1]) / since if since else None
        return EpochDone(done, of, _number(last, "train_loss"), _number(last, f"val_{self.metric}"), left)

    def _running(self) -> list[PlannedRun]:
        return [run for run in self.planned if run.folder not in self._ended][: self.workers]

    def _note_running(self) -> None:
        for run in self._running():
            self._began.setdefault(run.folder, self.clock())


def _history(path: Path) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [row for row in csv.DictReader(file) if row.get("epoch", "").isdigit()]
    except OSError:
        return []  # not there yet


def _number(row: dict[str, str], name: str) -> float | None:
    try:
        return float(row[name])
    except (KeyError, ValueError):
        return None


def name_of(run: PlannedRun) -> str:
    """What tables call a run's model, with the candidate value if there are several."""
    return f"{run.about['model']} {run.about['variant']}".strip()
