"""`marble bench cluster` through its door: every way is measured, and the ratios are of what is in the rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import marble
from tests.compute.clusters import cluster_here


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_way_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with cluster_here():
        ended = marble("bench", "cluster", "--quick", "--json", tmp_path / "cluster.json")
    assert ended.code == 0, ended.err
    found = json.loads((tmp_path / "cluster.json").read_text())
    rows = {row["way"]: row for row in found["rows"]}
    assert list(rows) == ["processes, 1", "processes, 2", "cluster, 1", "cluster, 2"]
    assert found["speed_up"] == rows["cluster, 1"]["slide_s"] / rows["cluster, 2"]["slide_s"]
    assert found["against_processes"] == rows["cluster, 2"]["slide_s"] / rows["processes, 2"]["slide_s"]
    assert "times as fast on the cluster" in " ".join(ended.out.split())
