"""`marble export` as users meet it: the folder that `extract` made, and a bag that went bad."""

from __future__ import annotations

from pathlib import Path

import torch
from typer.testing import CliRunner

from marble import cli
from marble.bags.store import BagStore
from tests.interchange.making import truth, write_trident


def test_a_damaged_bag_costs_only_itself(tmp_path: Path) -> None:
    made = truth()
    for slide in "abc":
        write_trident(tmp_path / "in" / f"{slide}.h5", made.coarse, made.coarse_xy, 1024, 10)
    runner = CliRunner()
    store = tmp_path / "bags" / "0123"
    assert (
        runner.invoke(cli.assemble(), ["import", "--level", f"10:{tmp_path / 'in'}", "--store", str(store)]).exit_code
        == 0
    )
    path = BagStore(store).bag_path("b")
    path.write_bytes(path.read_bytes()[:-7])
    result = runner.invoke(cli.assemble(), ["export", str(tmp_path / "bags"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "b.safetensors" in result.output
    assert {file.name for file in (tmp_path / "out").rglob("*.h5")} == {"a.h5", "c.h5"}
    assert torch.equal(BagStore(store).load("a").finest.features, BagStore(store).load("c").finest.features)
