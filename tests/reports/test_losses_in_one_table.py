"""Models of one table may be trained by losses that store different columns: the baselines always are by Cox's."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marble.cli import assemble
from marble.reports.cases import errors, extremes
from marble.reports.collect import collect
from marble.reports.together import together
from marble.training.run import execute
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry
from tests.training.jobs import plan
from tests.viewer.client import get

MODELS = '[{ name = "abmil", hidden = 8, attention_dim = 4, label = "abmil" }]'


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of four folds, in discrete time beside a baseline that is solved for Cox's loss."""
    folder = tmp_path_factory.mktemp("losses")
    train = ', survival_loss = "nll", bins = 2'
    for planned in plan(
        folder, "survival", MODELS, patients=24, epochs=1, repeats=2, train=train, baselines='["probe"]'
    ):
        execute(planned)
    return folder / "out" / "tiny"


@pytest.mark.parametrize("reference", ["abmil", "probe"])
def test_every_model_is_read_by_the_loss_it_was_trained_by(root: Path, reference: str) -> None:
    results = collect(root, reference)
    assert {model.key: list(model.repeats[0].task.columns) for model in results.models} == {
        "abmil": ["risk", "survival_1", "survival_2"],
        "probe": ["risk"],
    }
    assert len(extremes(results)) == 4
    assert errors(results) == []
    assert all(len(row.cases) == 24 for row in together(results))


def test_the_report_is_written_and_holds_both(root: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(assemble(), ["report", str(root), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "together.csv").open()))
    assert {row["model"] for row in rows} == {"abmil", "probe"}
    for row in rows:
        assert (row["survival_2"] == "") == (row["model"] == "probe")
        assert row["risk"]


def test_the_viewer_shows_both(root: Path) -> None:
    app = create_app(build_registry(root))
    page = get(app, "/")
    assert page.status == 200
    assert "probe" in page.body.decode()
