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
from marble.cli.outcomes import Stopped, Terminated, outcome_of


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
        assert said.rstrip().endswith("; the same command begins anew")


def test_only_a_table_of_predictions_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cohort = tmp_path / "cohort.csv"
    cohort.write_text("slide_id,case_id,label\ns,c,a\n")
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(tmp_path), str(tmp_path), "--out", str(cohort)])
    assert ended.value.code == 2
    assert f"{cohort}: this file is there already, and none of those that begin with" in capsys.readouterr().err
    assert cohort.read_text().endswith("s,c,a\n")
    store = ["--level", f"10:{tmp_path}", "--store", str(tmp_path / "bags")]
    with pytest.raises(SystemExit):
        main(["import", *store, "--audit", str(cohort)])
    assert "there already" in capsys.readouterr().err
    for ours in ("slide_id,part,predicted,p_a\n", ""):
        cohort.write_text(ours)
        with pytest.raises(SystemExit):
            main(["predict", str(tmp_path), str(tmp_path), "--out", str(cohort)])
        assert "there already" not in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "begins_anew"), [("predict", True), ("heatmap", True), ("run", False), (None, False)])
def test_the_last_line_says_what_the_same_command_does(verb: str | None, begins_anew: bool) -> None:
    line, _ = outcome_of(Stopped(), verb)
    assert line.endswith("the same command begins anew" if begins_anew else "start the same command again to go on")
