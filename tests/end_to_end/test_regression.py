"""A planted quantity is learned, held out, and told the same everywhere."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from marble.cli import assemble
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.viewer.client import get

EXPERIMENT = """
cohort = { path = "synthetic:quantity", patients = %d }
task = "regression"
unit = "%%"
split = { scheme = "kfold", folds = 4, repeats = 1 }
train = { recipe = "common", epochs = %d, warmup = 1, lr = 3e-3, orders = 2, val_orders = 1, regression_loss = "%s" }
models = [{ name = "abmil", hidden = 32, label = "abmil" }, { name = "mean", hidden = 8, label = "mean" }]
"""


def _marble(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), [str(argument) for argument in arguments], catch_exceptions=False)


def _table(folder: Path, patients: int, epochs: int, loss: str) -> dict[str, dict[str, str]]:
    """Run the experiment; the rows of its table by model."""
    (folder / "tiny.toml").write_text(EXPERIMENT % (patients, epochs, loss))
    done = _marble("run", folder / "tiny.toml", "--out", folder / "out")
    assert done.exit_code == 0, done.output
    report = folder / "out" / "tiny" / "report"
    return {row["model"]: row for row in csv.DictReader((report / "table.csv").open())}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_a_planted_quantity_is_found(tmp_path: Path, loss: str) -> None:
    rows = _table(tmp_path, 80, 20, loss)
    assert float(rows["abmil"]["r2"]) >= 0.8
    assert float(rows["abmil"]["pearson"]) >= 0.9
    assert float(rows["abmil"]["mae"]) <= 8  # of a range of 60
    report = tmp_path / "out" / "tiny" / "report"
    assert f"abmil: R2 {float(rows['abmil']['r2']):.3f}" in (report / "scatter.svg").read_text()


def test_a_number_is_told_the_same_everywhere(tmp_path: Path) -> None:
    rows = _table(tmp_path, 24, 2, "squared")
    report = tmp_path / "out" / "tiny" / "report"
    for row in rows.values():
        assert float(row["r2_low"]) <= float(row["r2"]) <= float(row["r2_high"])
        assert float(row["mae_low"]) <= float(row["mae"]) <= float(row["mae_high"])
        assert float(row["spearman_low"]) <= float(row["spearman_high"]) <= 1
    assert "R2" in (report / "table.md").read_text()

    run = tmp_path / "out" / "tiny" / "abmil" / "0"
    record = json.loads((run / "run.json").read_text())
    assert 40 < record["task"]["target_mean"] < 60
    assert record["task"]["target_sd"] > 5
    bags = tmp_path / "out" / "tiny" / "cohort" / "bags"
    assert _marble("predict", run, bags, "--out", tmp_path / "said.csv", "--allow-training-slides").exit_code == 0
    said = {row["slide_id"]: row for row in csv.DictReader((tmp_path / "said.csv").open())}
    stored = [row for row in csv.DictReader((run / "predictions.csv").open()) if row["part"] == "test"]
    alone = next(row for row in stored if ";" not in row["slide_ids"])
    slide = alone["slide_ids"]
    assert said[slide]["value"] == alone["value"]  # to the last digit
    for mode in ("attention", "gradient", "occlusion"):
        options = ("--store", bags, "--out", tmp_path / mode, "--size", 64, "--mode", mode, "--level", 0)
        drawn = _marble("heatmap", run, slide, *options)
        assert drawn.exit_code == 0, drawn.output
        assert f"predicted {float(alone['value']):.4g}" in drawn.output
    registry = build_registry(tmp_path / "out", store=bags)
    app = create_app(registry)
    entry = next(one for one in registry.runs.values() if one.folder == run)
    seen = get(app, f"/api/slides/{key_of('slide', slide)}/runs/{entry.key}").json()
    assert seen["readout"]["value"] == float(alone["value"])
    off = float(alone["value"]) - float(alone["target"])
    truth = f"{float(alone['target']):g} %"
    assert seen["facts"] == [
        ["predicted value", f"{float(alone['value']):.4g} %"],
        ["true value", truth],
        ["error", f"{off:+.4g} %"],
    ]
    listed = get(app, "/").body.decode()
    assert f"{float(alone['value']):.4g} <small>error {off:+.3g}</small>" in listed
    assert "True value<" in listed
    assert ">abmil <small>(%)</small>" in listed
    assert 'id="truth"' not in listed  # a menu of every number there is would be no filter
    assert 'id="miss"' in listed
    assert f"true value: {truth}" in get(app, f"/slide/{key_of('slide', slide)}").body.decode()
    gradient = get(app, f"/api/slides/{key_of('slide', slide)}/runs/{entry.key}/gradient").json()
    assert gradient["meaning"]["unit"] == "predicted value in %"
    assert gradient["meaning"]["high"] == "raises the predicted value"
    assert {"scatter.png", "residuals.png"} <= {path.name for path in report.iterdir()}
    assert f"error {off:+.3g} %" in (report / "index.html").read_text() or len(stored) > 12
    assert _marble("verify", tmp_path / "out").exit_code == 0


def test_a_loss_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(EXPERIMENT % (24, 2, "cubed"))
    refused = CliRunner().invoke(assemble(), ["run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "out")])
    assert "train.regression_loss" in str(refused.exception)
