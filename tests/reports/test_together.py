"""The repeats as one: the same numbers as `marble predict` gives with the runs that held a slide out."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from marble.cli import assemble
from marble.reports.collect import collect
from marble.reports.together import together, together_rows
from marble.training.results import read_predictions
from marble.training.run import execute
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.training.jobs import plan
from tests.viewer.client import get

MODELS = '[{ name = "mean", hidden = 8, label = "mean" }, { name = "abmil", hidden = 8, label = "abmil" }]'


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of four folds: every patient is held out twice."""
    folder = tmp_path_factory.mktemp("together")
    for planned in plan(folder, "burden", MODELS, patients=16, epochs=1, repeats=2):
        execute(planned)
    return folder


@pytest.fixture(scope="module")
def report(root: Path) -> Path:
    out = root / "report"
    done = CliRunner().invoke(assemble(), ["report", str(root / "out" / "tiny"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


def test_every_case_is_what_predict_says_with_its_runs(root: Path, report: Path, tmp_path: Path) -> None:
    rows = [row for row in csv.DictReader((report / "together.csv").open()) if row["model"] == "abmil"]
    folders = sorted((root / "out" / "tiny" / "abmil").glob("*/run.json"))
    alone = [row for row in rows if ";" not in row["slide_ids"]]
    assert len(rows) == 16
    for row in alone[:3]:
        holders = [
            path.parent for path in folders
            if any(one["part"] == "test" and one["case_id"] == row["case_id"] for one in read_predictions(path.parent))
        ]  # fmt: skip
        assert len(holders) == 2 == int(row["members"])
        bag = next((root / "out" / "tiny" / "cohort" / "bags").rglob(f"{row['slide_ids']}.safetensors"))
        first, *rest = holders
        asked = ["predict", str(first), str(bag), "--out", str(tmp_path / "said.csv")]
        for other in rest:
            asked += ["--with", str(other)]
        done = CliRunner().invoke(assemble(), asked)
        assert done.exit_code == 0, done.output
        (said,) = csv.DictReader((tmp_path / "said.csv").open())
        assert (said["predicted"], said["part"]) == (row["predicted"], "test")
        for name in ("p_negative", "p_positive", "member_sd"):
            assert float(row[name]) == pytest.approx(float(said[name]), rel=1e-12)


def test_scores_are_of_all_cases_at_once(root: Path, report: Path) -> None:
    results = collect(root / "out" / "tiny")
    rows = together(results)
    header, body = together_rows(results, rows)
    stored = list(csv.DictReader((report / "together.csv").open()))
    for row, cells in zip(rows, body, strict=True):
        mine = [one for one in stored if one["model"] == row.model.key]
        truth = [one["label"] == "positive" for one in mine]
        area = roc_auc_score(truth, [float(one["p_positive"]) for one in mine])
        assert row.cells["auc"].mean == pytest.approx(area)
        interval = row.cells["auc"].interval
        assert interval is not None
        assert interval.low <= area <= interval.high
        sure = row.cells["ece"]
        assert isinstance(sure.mean, float)
        assert sure.interval is not None
        assert sure.interval.low <= sure.mean <= sure.interval.high
        right = np.mean([one["label"] == one["predicted"] for one in mine])
        assert row.cells["accuracy"].mean == pytest.approx(right)
        assert row.spread == pytest.approx(np.mean([float(one["member_sd"]) for one in mine]))
        assert cells[:3] == [row.model.key, "16", "2"]
        assert cells[header.index("AUC")].startswith(f"{area:.3f}")
    page = (report / "index.html").read_text()
    assert "<h2>Repeats together</h2>" in page
    assert body[0][-1] in page


def test_the_list_of_the_viewer_says_the_same(root: Path, report: Path) -> None:
    app = create_app(build_registry(root / "out"))
    page = get(app, "/").body.decode()
    for row in csv.DictReader((report / "together.csv").open()):
        told = f"{float(row['p_' + row['predicted']]):.3f} ± {float(row['member_sd']):.2g} (2 repeats)"
        assert f"{row['predicted']} <small>{told}</small>" in page
    registry = build_registry(root / "out")
    (experiment,) = registry.experiments
    assert "Repeats together" in get(app, f"/results/{experiment}").body.decode()
    assert get(app, f"/slide/{key_of('slide', next(iter(registry.slides.values())).slide_id)}").status == 200


def test_one_round_has_nothing_to_average(tmp_path: Path) -> None:
    for planned in plan(tmp_path, "burden", '[{ name = "mean", hidden = 8 }]', patients=16, epochs=1):
        execute(planned)
    assert together(collect(tmp_path / "out" / "tiny")) == ()
    done = CliRunner().invoke(assemble(), ["report", str(tmp_path / "out" / "tiny"), "--out", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    assert "Repeats together" not in (tmp_path / "report" / "index.html").read_text()
    assert not (tmp_path / "report" / "together.csv").exists()


def test_of_several_marbles_the_one_of_most_levels_is_the_reference(tmp_path: Path) -> None:
    models = """[
      { name = "marble", d_state = 4, headdim = 4, label = "A, one level", levels = 1 },
      { name = "marble", d_state = 4, headdim = 4, label = "B, both" },
    ]"""
    for planned in plan(tmp_path, "burden", models, patients=16, epochs=1)[:2]:
        execute(planned)
    results = collect(tmp_path / "out" / "tiny")
    assert results.reference is results.models[0]
    assert [model.key for model in results.models] == ["B, both", "A, one level"]
    asked = collect(tmp_path / "out" / "tiny", "A, one level")
    assert [model.key for model in asked.models] == ["A, one level", "B, both"]
