"""`marble bench mixers`, at two tiny sizes: every variant against mamba2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marble.benchmarks import mixers, model
from marble.cli import assemble


def test_every_variant_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixers, "peak_memory", lambda *_arguments, threads: 1024)  # a process each would take minutes
    out = tmp_path / "mixers.json"
    done = CliRunner().invoke(assemble(), ["bench", "mixers", "--quick", "--json", str(out)])
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    found = {(row["tokens"], row["pass"], row["variant"]) for row in result["rows"]}
    assert found == {(t, p, v) for t in mixers.QUICK_SIZES for p in model.PASSES for v in mixers.VARIANTS}
    assert all(row["ratio"] == 1 for row in result["rows"] if row["variant"] == "mamba2")
    assert all(row["seconds"] > 0 for row in result["rows"])
    assert not result["left_out"]
