"""`marble bench routing`, small: every choice at every budget, and the same prediction where nothing is left out."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from marble.benchmarks import routing
from marble.cli import assemble


def test_the_curve_and_the_time(tmp_path: Path) -> None:
    out = tmp_path / "routing.json"
    done = CliRunner().invoke(assemble(), ["bench", "routing", "--quick", "--json", str(out)])
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    found = {(row["choice"], row["budget"]) for row in result["rows"]}
    assert found == {(choice, budget) for choice in ("routed", "random", "oracle") for budget in routing.BUDGETS}
    whole = {row["auc"] for row in result["rows"] if row["budget"] == 1}
    assert len(whole) == 1  # nothing is left out, so nobody's choice matters
    for row in result["rows"]:
        assert row["share"] <= max(row["budget"], 0.1)  # one branch of a small bag always stays
    assert result["slide"]["fine_tiles"]["routed"] < result["slide"]["fine_tiles"]["whole"]
    assert result["slide"]["ratio"] > 0
