"""What runs of earlier versions stored, told one by one and several together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marble import files
from marble.targets import SurvivalTime
from marble.tasks.survival import Survival
from marble.training.results import FORMAT, sealed
from marble.viewer.stored import said_together, stored_predictions

#: Cox risks were stored as logits, which have another zero in every run
RISKS, MEDIANS = (52.0, -17.0), (50.0, -20.0)


def _stored(folder: Path, risk: float, median: float) -> dict[str, Any]:
    rows = f"part,case_id,slide_ids,time,event,risk,order_sd\ntest,P1,S1,2.0,1,{risk!r},0.0\n"
    predictions = files.publish(folder / "predictions.csv", rows)
    record = sealed(
        {
            "format": FORMAT,
            "task": {"name": "survival"},
            "calibration": {"median_risk": median, "baseline_times": [1.0], "baseline_log_hazard": [0.0]},
            "sha256": {"predictions": files.sha256_file(predictions)},
        }
    )
    files.publish_json(folder / "run.json", record)
    return record


def test_a_risk_of_before_is_counted_from_its_runs_median_once(tmp_path: Path) -> None:
    said = []
    for k, (risk, median) in enumerate(zip(RISKS, MEDIANS, strict=True)):
        record = _stored(tmp_path / str(k), risk, median)
        stored = stored_predictions(tmp_path / str(k), record)["S1"]
        assert (stored.number, stored.target) == (risk, SurvivalTime(2.0, True))  # as `marble predict` says it
        said.append((stored, record["calibration"]))
    assert said_together(Survival(), said).number == pytest.approx(2.5)  # of 2 and 3
