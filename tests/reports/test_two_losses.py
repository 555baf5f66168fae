"""A table of one model trained on Cox's loss and one in discrete time, as MambaMIL's authors did."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sksurv.metrics import concordance_index_censored

from marble.errors import RunError
from marble.reports.cases import extremes
from marble.reports.collect import collect
from marble.reports.page import write_report
from marble.reports.together import together
from marble.training.results import read_predictions
from marble.training.run import PlannedRun, execute
from tests.training.jobs import plan

MODELS = '[{ name = "max", hidden = 8, label = "a" }, { name = "mean", hidden = 8, label = "b" }]'


def _in_discrete_time(planned: PlannedRun) -> PlannedRun:
    task = planned.job.task.model_copy(update={"survival_loss": "nll"})
    return planned.model_copy(update={"job": planned.job.model_copy(update={"task": task})})


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> list[PlannedRun]:
    """Two rounds of four folds; the model that is first in every folder is the one in discrete time."""
    root = tmp_path_factory.mktemp("losses")
    runs = [
        _in_discrete_time(one) if one.about["model"] == "a" else one
        for one in plan(root, "survival", MODELS, epochs=1, repeats=2)
    ]
    for one in runs:
        execute(one)
    return runs


def test_every_run_is_read_as_it_was_trained(planned: list[PlannedRun], tmp_path: Path) -> None:
    root = Path(planned[0].folder).parent.parent
    assert write_report(root, tmp_path).exists()
    results = collect(root)
    assert len(extremes(results)) == 4
    scored = {row.model.key: row.cells["c_index"].mean for row in together(results)}
    rows = list(csv.DictReader((tmp_path / "together.csv").open()))
    for model in results.models:
        mine = [row for row in rows if row["model"] == model.key]
        assert all(bool(row["survival_1"]) == (model.key == "a") for row in mine)
        stored: dict[str, list[float]] = {}
        for repeat in model.repeats:
            for row in read_predictions(repeat.folder):
                if row["part"] == "test":
                    stored.setdefault(row["case_id"], []).append(float(row["risk"]))
        assert {row["case_id"]: float(row["risk"]) for row in mine} == pytest.approx(
            {name: np.mean(risks) for name, risks in stored.items()}
        )
        event, time, risk = (np.array([float(row[key]) for row in mine]) for key in ("event", "time", "risk"))
        assert scored[model.key] == pytest.approx(concordance_index_censored(event.astype(bool), time, risk)[0])


def test_repeats_of_one_model_on_two_losses_are_refused(tmp_path: Path) -> None:
    first, second, *_ = plan(tmp_path, "survival", '[{ name = "mean", hidden = 8 }]', epochs=1)
    for one in (_in_discrete_time(first), second):
        execute(one)
    with pytest.raises(RunError, match="were trained on different losses"):
        collect(Path(first.folder).parent.parent)
