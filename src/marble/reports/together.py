"""The repeats of a model as one: every case as those repeats say together that held it out.

Their logits are averaged, as `marble predict` does with a folder of repeats and a slide that is new to all of them. No
run that has seen a case in training or validation has a say in it, so these are still test results; but unlike the
table's they are of all cases at once, not means over repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marble.reports.collect import ModelResults, Repeat, Results
from marble.reports.compare import Cell
from marble.reports.statistics import PatientBootstrap, bootstrap_interval
from marble.reports.tables import cell_text, rows_csv
from marble.targets import Target
from marble.tasks.base import Task
from marble.tasks.metric import Undefined
from marble.tasks.pooling import Pooled, pool
from marble.training.results import StoredCase, join_slides, read_cases


@dataclass(frozen=True)
class TogetherCase:
    """One case and what is said of it together."""

    case_id: str
    slide_ids: tuple[str, ...]
    target: Target
    said: Pooled


@dataclass(frozen=True)
class TogetherRow:
    """One model."""

    model: ModelResults
    cases: tuple[TogetherCase, ...]
    cells: dict[str, Cell]

    @property
    def members(self) -> tuple[int, int]:
        """The fewest and the most repeats that held a case out."""
        counts = [case.said.members for case in self.cases]
        return min(counts), max(counts)

    @property
    def spread(self) -> float:
        """Mean SD over the members, of the cases that have several."""
        return float(np.mean([case.said.sd for case in self.cases if case.said.members > 1]))


def together(results: Results) -> tuple[TogetherRow, ...]:
    """A row per model; none where no case was held out more than once, as in one round of cross-validation."""
    cases = {model.key: _cases(model) for model in results.models}
    if not any(case.said.members > 1 for mine in cases.values() for case in mine):
        return ()
    return tuple(TogetherRow(model, cases[model.key], _cells(model.task, cases[model.key])) for model in results.models)


def _cases(model: ModelResults) -> tuple[TogetherCase, ...]:
    held: dict[tuple[str, tuple[str, ...]], list[tuple[Repeat, StoredCase]]] = {}
    for repeat in model.repeats:
        for stored in read_cases(repeat.folder, repeat.task):
            if stored.part == "test":
                held.setdefault((stored.case_id, stored.slide_ids), []).append((repeat, stored))
    return tuple(_case(model.task, case_id, slides, said) for (case_id, slides), said in sorted(held.items()))


def _case(
    task: Task, case_id: str, slide_ids: tuple[str, ...], said: Sequence[tuple[Repeat, StoredCase]]
) -> TogetherCase:
    calibrations = [repeat.calibration for repeat, _ in said]
    pooled = pool(task, [stored.readout for _, stored in said], calibrations)
    return TogetherCase(case_id, slide_ids, said[0][1].target, pooled)


def _cells(task: Task, cases: Sequence[TogetherCase]) -> dict[str, Cell]:
    """Every metric of all cases, with its interval by bootstrap over patients."""
    targets = [case.target for case in cases]
    readouts = {name: np.array([case.said.readout[name] for case in cases]) for name in task.columns}
    calibration = task.join_calibrations([case.said.calibration for case in cases])
    weighted = task.weighted_metrics(targets, readouts, calibration)
    bootstrap = PatientBootstrap([[case.case_id for case in cases]])
    cells = {}
    for name, value in task.metrics(targets, readouts, calibration).items():
        if isinstance(value, Undefined) or name not in weighted:
            cells[name] = Cell(value, runs=1)
        else:
            draws = bootstrap.means([weighted[name]])
            draws = draws.around(value) if name in task.inflated else draws
            cells[name] = Cell(value, None, bootstrap_interval(value, draws), draws.left_out, 1)
    return cells


def together_rows(results: Results, rows: Sequence[TogetherRow]) -> tuple[list[str], list[list[str]]]:
    """Header and cells as a reader wants them."""
    shown = [name for name in rows[0].cells if name in results.task.metric_names]
    header = ["Model", "Cases", "Repeats per case", *(results.task.metric_names[name] for name in shown), "Spread"]
    body = []
    for row in rows:
        fewest, most = row.members
        count = str(most) if fewest == most else f"{fewest} to {most}"
        cells = [cell_text(row.cells[name]) for name in shown]
        body.append([row.model.key, str(len(row.cases)), count, *cells, f"{row.spread:.3g}"])
    return header, body


def together_csv(results: Results, rows: Sequence[TogetherRow]) -> str:
    """Every case of every model, with all digits."""
    task = results.task  # targets are the same in all runs, what is stored of predictions need not be
    return rows_csv(
        [
            {
                "model": row.model.key,
                "case_id": case.case_id,
                "slide_ids": join_slides(case.slide_ids),
                **dict(zip(task.target_columns, task.target_cells(case.target), strict=True)),
                "predicted": case.said.decision.label or "",
                **case.said.readout,
                "members": case.said.members,
                "member_sd": case.said.sd,
            }
            for row in rows
            for case in row.cases
        ]
    )
