"""Report, `predict`, `heatmap`, viewer and case list call the same class for the same run and slide."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from marble.cli import assemble
from marble.reports.collect import Repeat, collect
from marble.reports.confusion import confusion_table
from marble.synthetic.cohort import write_cohort
from marble.tasks.base import Task
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.viewer.client import get

EXPERIMENT = """
cohort = { path = "cohort/cohort.csv", scored_by = "case" }
bags = { store = "cohort/bags" }
task = "classification"
decision = "%s"
positive = "%s"
split = { scheme = "kfold", folds = 4, repeats = 1 }
train = { recipe = "common", epochs = %d, warmup = 1, lr = 2e-3, orders = 2, val_orders = 1 }
models = [{ name = "abmil", hidden = 16, label = "abmil" }, { name = "marble", d_state = 8, label = "marble" }]
"""


def _marble(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("decision", "positive", "epochs"),
    [("argmax", "positive", 1), ("threshold", "negative", 6)],
)
def test_all_five_agree(tmp_path: Path, decision: str, positive: str, epochs: int) -> None:
    write_cohort(tmp_path / "cohort", "burden", patients=14, two_slides=0.0)
    (tmp_path / "five.toml").write_text(EXPERIMENT % (decision, positive, epochs))
    assert _marble("run", tmp_path / "five.toml", "--out", tmp_path / "runs").exit_code == 0
    results = collect(tmp_path / "runs" / "five")
    registry = build_registry(tmp_path / "runs", store=tmp_path / "cohort" / "bags")
    app = create_app(registry)
    page = get(app, "/").body.decode()
    separated = 0
    for place, model in enumerate(results.models):  # MARBLE first, as in the list
        for repeat in model.repeats[:1]:
            by_report = _by_report(results.task, repeat)
            run = next(entry for entry in registry.runs.values() if entry.folder == repeat.folder)
            table = tmp_path / "said.csv"
            said = _marble(
                "predict", repeat.folder, tmp_path / "cohort" / "bags", "--out", table, "--allow-training-slides"
            )
            assert said.exit_code == 0, said.output
            by_predict = {row["slide_id"]: row for row in csv.DictReader(table.open())}
            separated += repeat.record["fit"]["val"]["auc"] == 1.0
            for slide, (label, truth) in by_report.items():
                drawn = _marble("heatmap", repeat.folder, slide, "--store", tmp_path / "cohort" / "bags",
                                "--out", tmp_path / "maps", "--size", 64, "--level", 0)  # fmt: skip
                by_heatmap = json.loads((tmp_path / "maps" / f"{slide}-attention.json").read_text())["prediction"]
                by_viewer = get(app, f"/api/slides/{key_of('slide', slide)}/runs/{run.key}").json()
                listed = run.stored[slide]
                labels = {label, by_predict[slide]["predicted"], by_heatmap["predicted"], by_viewer["label"],
                          listed.predicted}  # fmt: skip
                assert len(labels) == 1, (slide, labels)
                assert f"predicted {label}, p = " in drawn.output
                assert _listed(page, slide)[place] == label
                assert listed.wrong == (label != truth)
                for name, value in listed.readout.items():  # one number behind the one class
                    assert value == float(by_predict[slide][name]) == by_heatmap[name] == by_viewer["readout"][name]
            _accuracy_is_of_these(results.task, repeat, by_report)
    if epochs > 1:
        assert separated  # so a threshold chosen where every one between two scores is as good as the next


def _by_report(task: Task, repeat: Repeat) -> dict[str, tuple[str, str]]:
    """{slide: (class called, truth)} of the test part, from the report's own numbers."""
    called = repeat.called(task)
    assert called is not None
    return {
        f"{patient}-S0": (task.class_names[int(k)], str(target))
        for patient, target, k in zip(repeat.test.patients, repeat.test.targets, called, strict=True)
    }


def _accuracy_is_of_these(task: Task, repeat: Repeat, said: dict[str, tuple[str, str]]) -> None:
    right = sum(label == truth for label, truth in said.values())
    assert repeat.metrics["accuracy"] == right / len(said)
    table = confusion_table(task, [repeat])
    for i, truth in enumerate(task.class_names):
        for j, label in enumerate(task.class_names):
            assert table[i, j] == sum(one == (label, truth) for one in said.values())


def _listed(page: str, slide: str) -> list[str]:
    """The classes that the case list shows for a slide, one per model."""
    row = next(row for row in re.findall(r"<tr .*?</tr>", page, re.DOTALL) if f"/slide/{key_of('slide', slide)}" in row)
    return re.findall(r'data-said="([^"]*)"', row)
