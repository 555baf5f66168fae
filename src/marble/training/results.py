"""What a fit leaves behind: history, predictions, and the record that makes the run done.

history.csv          one row per epoch; the same bytes for the same seed
model.safetensors    the weights chosen on validation
fit.json             the job's fingerprint, the chosen epoch, the hash of the weights
predictions.csv      one row per case; test rows are written once, after the choice
run.json             written last: everything needed to predict again and to make a table, and its seal
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble import files
from marble.errors import InputError, IntegrityError, RunError
from marble.specs import canonical_json
from marble.tabular import csv_text
from marble.targets import Target
from marble.tasks.base import Task
from marble.training.evaluate import CasePrediction
from marble.walking import named

FORMAT = 2


@dataclass(frozen=True)
class StoredCase:
    """One row of predictions.csv."""

    part: str
    case_id: str
    slide_ids: tuple[str, ...]
    target: Target
    readout: dict[str, float]
    order_sd: float


def history_csv(history: Sequence[dict[str, Any]]) -> str:
    """The history as CSV text; floats keep every digit."""
    if not history:
        return "epoch\n"
    columns = list(history[0])
    return _csv(columns, [[row[name] for name in columns] for row in history])


def predictions_csv(parts: Mapping[str, Sequence[CasePrediction]], task: Task) -> str:
    """One row per case: part, ids, target, readout, order_sd."""
    header = ["part", "case_id", "slide_ids", *task.target_columns, *task.columns, "order_sd"]
    rows = []
    for part, predictions in parts.items():
        for row in predictions:
            known = task.target_cells(row.case.target.value())
            readout = [row.readout[name] for name in task.columns]
            rows.append([part, row.case.case_id, join_slides(row.case.slides), *known, *readout, row.order_sd])
    return _csv(header, rows)


def read_cases(folder: str | Path, task: Task) -> list[StoredCase]:
    """A run's stored predictions; a row that no prediction of the task can be is refused by its line."""
    path = Path(folder) / "predictions.csv"
    cases = []
    for line, row in enumerate(read_predictions(folder), start=2):
        try:
            order_sd = float(row["order_sd"])
            target, readout = task.read_target(row), task.read_readout(row)
            cases.append(StoredCase(row["part"], row["case_id"], _split(row["slide_ids"]), target, readout, order_sd))
        except (InputError, KeyError, TypeError, ValueError) as error:
            what = error.what if isinstance(error, InputError) else f"not a row of predictions ({error})"
            raise RunError(what, where=f"{path}, line {line}", hint="Evaluate the run again") from None
    return cases


def read_predictions(folder: str | Path) -> list[dict[str, str]]:
    """The rows of a run's predictions.csv, after comparing its hash with the one in run.json."""
    path = Path(folder) / "predictions.csv"
    recorded = read_run(folder)["sha256"]["predictions"]
    if not path.exists():
        raise RunError("predictions.csv is missing", where=folder, hint="Make it again with `marble run`")
    data = path.read_bytes()
    if files.sha256_bytes(data) != recorded:
        raise RunError("predictions changed since they were written", where=path, hint="Evaluate the run again")
    return list(csv.DictReader(io.StringIO(data.decode())))


def read_run(folder: str | Path) -> dict[str, Any]:
    """A finished run's record."""
    path = Path(folder) / "run.json"
    if not path.exists():
        below = find_runs(folder)
        hint = f"Give one of the runs below, as {below[0]}" if below else "Finish it with `marble run`"
        raise RunError("not a finished run: run.json is missing", where=folder, hint=hint)
    record: dict[str, Any] = files.read_json(path, dict)
    if record.get("format") != FORMAT:
        raise RunError(
            f"run format {record.get('format')} is not {FORMAT}", where=path, hint="Make it again with `marble run`"
        )
    if record.get("seal") != seal_of(record):
        raise IntegrityError(
            "the seal is broken: run.json is not as it was written", where=path, hint="Make it again with `marble run`"
        )
    return record


def validation_of(record: Mapping[str, Any]) -> float | None:
    """The validation metric of a run's kept epoch; None where its validation cases have none."""
    found = record["fit"]["val"][record["fit"]["selected_by"]]
    return float(found) if isinstance(found, int | float) else None


def validation_text(record: Mapping[str, Any]) -> str:
    """The same for a reader: the number, or why there is none."""
    number = validation_of(record)
    return str(record["fit"]["val"][record["fit"]["selected_by"]]) if number is None else f"{number:.3f}"


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A run's record with the one hash over everything it says; the files of the run are in it by their hashes."""
    return {**record, "seal": seal_of(record)}


def seal_of(record: Mapping[str, Any]) -> str:
    return files.sha256_bytes(canonical_json({key: value for key, value in record.items() if key != "seal"}))


def find_runs(root: str | Path) -> list[Path]:
    """Every finished run below `root`, sorted."""
    return [path.parent for path in named(root, "run.json")]


def join_slides(slide_ids: Sequence[str]) -> str:
    """One cell of several ids; a semicolon inside an id is kept apart by a backslash."""
    return ";".join(slide_id.replace("\\", "\\\\").replace(";", "\\;") for slide_id in slide_ids)


def _split(cell: str) -> tuple[str, ...]:
    parts = re.findall(r"(?:[^;\\]|\\.)+", cell, re.DOTALL)
    return tuple(re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in parts)


def _csv(header: list[str], rows: list[list[Any]]) -> str:
    return csv_text(header, [[repr(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows])
