"""`marble bench orders`, small: every order on both cohorts, compared, and nothing is trained twice."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from marble.benchmarks import orders
from marble.cli import assemble


def test_every_order_is_compared_with_the_shuffled_scan(tmp_path: Path) -> None:
    out = tmp_path / "orders.json"
    command = ["bench", "orders", "--quick", "--json", str(out), "--out", str(tmp_path / "kept")]
    done = CliRunner().invoke(assemble(), command)
    assert done.exit_code == 0, done.output
    tables = json.loads(out.read_text())["tables"]
    assert [table["cohort"] for table in tables] == list(orders.COHORTS)
    for table in tables:
        rows = {row["model"]: row for row in table["models"]}
        assert set(rows) == set(orders.VARIANTS)
        assert rows[orders.REFERENCE]["p_holm"] is None  # all others are tested against it
        assert all(row["p_holm"] is not None for name, row in rows.items() if name != orders.REFERENCE)
        assert {name for name, row in rows.items() if row["median_order_sd"] > 0} == {orders.REFERENCE}
    table = (tmp_path / "kept" / "orders.md").read_text()
    assert table.startswith("| Model | neighbours | cross-scale |")
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("run.json")}
    assert len(runs) == len(orders.COHORTS) * len(orders.VARIANTS)
    assert CliRunner().invoke(assemble(), command).exit_code == 0  # goes on with what is there
    assert runs == {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("run.json")}
