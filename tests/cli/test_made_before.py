"""A report that shows runs of an experiment's earlier settings is told to do so."""

from __future__ import annotations

from pathlib import Path

from marble.cli.run import made_before
from marble.training.protocol import RunOutcome
from tests.training.jobs import plan


def test_runs_that_failed_and_are_in_the_report_all_the_same_are_named(tmp_path: Path) -> None:
    failed, lost, good, *_ = plan(tmp_path, models='[{ name = "tiles" }]')
    outcomes = [RunOutcome(failed, None, "other settings"), RunOutcome(lost, None, "a reason"), RunOutcome(good, {})]
    assert made_before(outcomes) is None
    for one in (failed, good):
        Path(one.folder).mkdir(parents=True)
        (Path(one.folder) / "run.json").touch()
    assert made_before(outcomes) == ("the report shows earlier runs, not those that this experiment asks for: tiles/0")
