"""What a fit leaves behind: history, predictions, and the record that makes the run done.

history.csv          one row per epoch; the same bytes for the same seed
model.safetensors    the weights chosen on validation
fit.json             the job's fingerprint, the chosen epoch, the hash of the weights
predictions.csv      one row per case; test rows are written once, after the choice
run.json             written last: everything needed to predict again and to make a table
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marble import files
from marble.errors import RunError
from marble.tabular import csv_text
from marble.tasks.base import Task
from marble.training.evaluate import CasePrediction

FORMAT = 1
TARGET_COLUMNS = {"classification": ("label",), "survival": ("time", "event")}


def history_csv(history: Sequence[dict[str, Any]]) -> str:
    """The history as CSV text; floats keep every digit."""
    if not history:
        return "epoch\n"
    columns = list(history[0])
    return _csv(columns, [[row[name] for name in columns] for row in history])


def predictions_csv(parts: Mapping[str, Sequence[CasePrediction]], task: Task) -> str:
    """One row per case: part, ids, target, readout, order_sd."""
    header = ["part", "case_id", "slide_ids", *TARGET_COLUMNS[task.name], *task.columns, "order_sd"]
    rows = []
    for part, predictions in parts.items():
        for row in predictions:
            target = row.case.target
            known = [target.label] if task.name == "classification" else [target.time, int(bool(target.event))]
            readout = [row.readout[name] for name in task.columns]
            rows.append([part, row.case.case_id, ";".join(row.case.slides), *known, *readout, row.order_sd])
    return _csv(header, rows)


def read_predictions(folder: str | Path) -> list[dict[str, str]]:
    """The rows of a run's predictions.csv, after comparing its hash with the one in run.json."""
    path = Path(folder) / "predictions.csv"
    recorded = read_run(folder)["sha256"]["predictions"]
    data = path.read_bytes()
    if files.sha256_bytes(data) != recorded:
        raise RunError("predictions changed since they were written", where=path, hint="Evaluate the run again")
    return list(csv.DictReader(io.StringIO(data.decode())))


def read_run(folder: str | Path) -> dict[str, Any]:
    """A finished run's record."""
    path = Path(folder) / "run.json"
    if not path.exists():
        raise RunError("not a finished run: run.json is missing", where=folder, hint="Finish it with `marble run`")
    record: dict[str, Any] = files.read_json(path)
    if record.get("format") != FORMAT:
        raise RunError(f"run format {record.get('format')} is not {FORMAT}", where=path)
    return record


def find_runs(root: str | Path) -> list[Path]:
    """Every finished run below `root`, sorted."""
    return sorted(path.parent for path in Path(root).rglob("run.json"))


def _csv(header: list[str], rows: list[list[Any]]) -> str:
    return csv_text(header, [[repr(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows])
