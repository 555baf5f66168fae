"""A prediction over many slides that is stopped keeps the answers it had, and not under the name of all of them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marble import asking, ensemble
from marble.asking import AskedRow
from marble.cli import main
from marble.cli.outcomes import Terminated


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
@pytest.mark.parametrize("answered", [0, 2])
def test_answers_so_far_are_kept(
    stop: type[KeyboardInterrupt],
    code: int,
    answered: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def until_stopped(*_: Any, **__: Any) -> Iterator[AskedRow]:
        for slide in "ab"[:answered]:
            yield AskedRow(slide, {"slide_id": slide, "p": 0.25})
        raise stop

    monkeypatch.setattr(asking, "ask_here", until_stopped)
    monkeypatch.setattr(ensemble, "runs_together", list)
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(tmp_path), str(tmp_path), "--out", str(tmp_path / "said.csv")])
    assert ended.value.code == code
    kept, said = tmp_path / "said.stopped.csv", capsys.readouterr().err
    assert not (tmp_path / "said.csv").exists()
    assert kept.exists() == bool(answered)
    if answered:
        assert [row["slide_id"] for row in csv.DictReader(kept.open())] == ["a", "b"]
        assert f"the 2 answers so far are in {kept}" in said
