"""The folder of a run, as it is named on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.commands import marble


@pytest.mark.parametrize("verb", ["predict", "heatmap"])
def test_a_run_that_is_not_there_names_those_beside_it(verb: str, tmp_path: Path) -> None:
    """A model with values to choose from has a folder for each, and none that is called as the table calls it."""
    for name in ("abmil gated=True", "abmil gated=False", "marble", "probe"):
        (tmp_path / name).mkdir()
    done = marble(verb, tmp_path / "abmil", tmp_path)
    assert done.code == 2
    assert done.err == (
        f"error: {tmp_path / 'abmil'}: no such folder of a run. Beside it: abmil gated=False, abmil gated=True\n"
    )
    assert marble(verb, tmp_path / "marbel", tmp_path).err.endswith("Beside it: marble\n")
    assert marble(verb, tmp_path / "x" / "y", tmp_path).err.endswith("no such folder of a run\n")


def test_a_router_that_cannot_be_kept_is_not_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was learned to the end, and then refused by the file system."""
    (tmp_path / "run").mkdir()
    (tmp_path / "bags").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: mode & os.W_OK == 0)
    done = marble("route", tmp_path / "run", "--bags", tmp_path / "bags")
    assert done.code == 2
    assert done.err == f"error: {tmp_path / 'run'}: permission denied: cannot write here. Choose another run\n"
