"""`marble bench routing`, small: every choice at every budget, the loss, the time, and AUC by brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from marble.benchmarks import routing_curves
from marble.cli import assemble


@pytest.mark.slow
def test_the_curve_and_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marble.models.recipe.SMALL_EPOCHS", (1, 1))
    out = tmp_path / "routing.json"
    command = ["bench", "routing", "--quick", "--json", str(out), "--out", str(tmp_path / "kept")]
    done = CliRunner().invoke(assemble(), command)
    assert done.exit_code == 0, done.output
    focal, slides, made_up = json.loads(out.read_text())["tables"]
    for table in (focal, slides, made_up):
        found = {(point["choice"], point["budget"]) for point in table["points"]}
        assert found == {(c, b) for c in routing_curves.CHOICES for b in routing_curves.BUDGETS}
        whole = [point for point in table["points"] if point["budget"] == 1]
        assert len({point["auc"] for point in whole}) == 1  # nothing is left out, so nobody's choice matters
        assert all(point["difference"] == 0 for point in whole)
    for point in made_up["points"]:
        assert point["share"] <= max(point["budget"], 0.1)  # one branch of a small bag always stays
    counted = {"drawn slides": {"routed": 6 + 16, "whole": 6 + 96}}  # one of six regions; a second is beyond the budget
    counted["drawn slides, focal"] = {"routed": 12 + 48, "whole": 12 + 192}  # three of twelve
    for table in (slides, focal):
        (timed,) = table["time"]
        assert timed["tiles"] == counted[table["cohort"]]
        low, high = timed["range"]
        assert 0 < low <= timed["ratio"] <= high
    of_budget = {point["budget"]: point["share"] for point in focal["points"] if point["choice"] == "routed"}
    assert of_budget[0.25] == 3 / 12
    written = (tmp_path / "kept" / "routing.md").read_text()
    assert "`focal`: 1 seed, 16 test slides in all." in written
    assert "`drawn slides, focal`: 1 seed, 4 test slides in all." in written
    assert "| 3 drawn slides, 3 turns | 0.25 | 22 / 102 |" in written
    assert "| 3 drawn slides, focal, 3 turns | 0.25 | 60 / 204 |" in written
    first = (tmp_path / "kept" / "routing.svg").read_bytes()
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("run.json")}
    assert CliRunner().invoke(assemble(), command).exit_code == 0  # goes on with what is there
    assert (tmp_path / "kept" / "routing.svg").read_bytes() == first
    assert runs == {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("run.json")}


def test_the_difference_is_paired() -> None:
    """Two choices that say the same at every draw differ by nothing, however wide their own intervals are."""
    rng = np.random.default_rng(1)
    curves = []
    for seed in range(3):
        said = rng.standard_normal(30).tolist()
        by_budget = {"0.25": said, "1": said}
        shares = dict.fromkeys(by_budget, 0.25)
        curves.append(
            routing_curves.Curve(
                seed,
                [bool(i % 2) for i in range(30)],
                [f"P{i // 2}" for i in range(30)],
                dict.fromkeys(routing_curves.CHOICES, by_budget),
                dict.fromkeys(routing_curves.CHOICES, shares),
            )
        )
    for point in routing_curves.points(curves):
        assert (point["difference"], point["difference_interval"]) == (0, (0, 0))
        low, high = point["interval"]
        assert low < point["auc"] < high


def test_a_fold_without_one_of_the_classes_has_no_say() -> None:
    areas = np.array([[0.5, 1.0], [np.nan, 0.75], [np.nan, np.nan]])
    found = routing_curves._mean(areas)
    assert found[:2].tolist() == [0.75, 0.75]
    assert np.isnan(found[2])
