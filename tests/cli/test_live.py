"""The live table: what its rows say, and that no display error reaches the runs."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from rich.console import Console

from marble.cli.board import Board, BoardRow, EpochDone
from marble.cli.live import _Lines, board_table, follow
from marble.compute import Inline
from marble.models import COMMON
from marble.training.job import CaseSpec, FitJob, TargetSpec, TaskSpec
from marble.training.protocol import RunOutcome, run_all
from marble.training.run import PlannedRun
from tests.training.jobs import plan

JOB = FitJob(
    model="mean",
    dim=8,
    task=TaskSpec(name="classification", classes=("no", "yes")),
    recipe=COMMON,
    store="nowhere",
    bags_sha256="",
    train=(CaseSpec(case_id="p", slides=("p",), target=TargetSpec(label="no")),),
    val=(CaseSpec(case_id="q", slides=("q",), target=TargetSpec(label="yes")),),
    split="",
)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _planned(model: str, repeat: int, variant: str = "") -> PlannedRun:
    about = {"model": model, "variant": variant, "repeat": repeat}
    return PlannedRun(folder=f"{model}{variant}/{repeat}", job=JOB, test="", about=about)


def _done(run: PlannedRun, auc: float, seconds: float) -> RunOutcome:
    fit = {"val": {"auc": auc}, "selected_by": "auc", "best_epoch": 2, "epochs": 3}
    return RunOutcome(run, {"fit": fit, "seconds": seconds})


#: model by model within each repeat, as an experiment plans them
PLAN = [_planned(model, repeat) for repeat in range(3) for model in ("marble", "abmil")]


def test_rows_before_anything_has_ended() -> None:
    assert Board(PLAN, workers=2, clock=Clock()).rows() == [
        BoardRow("marble", total=3, running=(0,), epochs=(None,)),
        BoardRow("abmil", total=3, running=(0,), epochs=(None,)),
    ]


def test_rows_count_fits_and_average_the_validation_metric() -> None:
    clock = Clock()
    board = Board(PLAN, workers=2, clock=clock)
    for at, run, auc, seconds in ((10, 0, 0.8, 9), (20, 1, 0.6, 18), (24, 2, 0.9, 11), (30, 4, 0.7, 4)):
        clock.now = float(at)
        board.ended(_done(PLAN[run], auc, seconds))
    clock.now = 33.0
    marble, abmil = board.rows()
    # marble: all three repeats have ended, after 10 s, 14 s (from 10 to 24) and 6 s (from 24 to 30)
    assert marble == BoardRow(
        "marble", 3, done=3, mean=fmean([0.8, 0.9, 0.7]), sd=stdev([0.8, 0.9, 0.7]), elapsed_s=30.0, remaining_s=0.0
    )
    # abmil: one ended after 20 s of which 18 s were training; repeat 1 runs since 20, repeat 2 since 30
    assert abmil == BoardRow(
        "abmil",
        3,
        done=1,
        running=(1, 2),
        epochs=(None, None),
        mean=0.6,
        elapsed_s=20 + 13 + 3,
        remaining_s=2 * 18 - 13 - 3,
    )
    assert board.remaining_s() == (2 * 18 - 13 - 3) / 2
    assert board.elapsed_s() == 33.0


def test_a_failed_fit_is_counted_and_not_averaged() -> None:
    board = Board(PLAN, clock=Clock())
    board.ended(RunOutcome(PLAN[0], None, "NaN"))
    board.ended(_done(PLAN[2], 0.9, 5))
    marble, abmil = board.rows()
    assert (marble.done, marble.failed, marble.left, marble.mean, marble.sd) == (1, 1, 1, 0.9, None)
    assert (abmil.remaining_s, board.remaining_s()) == (None, None)  # no fit has shown what one costs


def test_candidate_values_have_rows_of_their_own() -> None:
    runs = [_planned("m", 0, variant) for variant in ("alpha=0.1", "alpha=0.2")]
    assert [row.model for row in Board(runs, clock=Clock()).rows()] == ["m alpha=0.1", "m alpha=0.2"]


def test_the_table_shows_the_rows() -> None:
    clock = Clock()
    board = Board([*PLAN, _planned("odd [red] name", 0)], workers=1, clock=clock)
    clock.now = 65.0
    board.ended(_done(PLAN[0], 0.8, 60))
    board.ended(_done(PLAN[2], 0.9, 60))
    board.ended(RunOutcome(PLAN[1], None, "NaN"))
    out = io.StringIO()
    Console(file=out, width=110).print(board_table("demo", board))
    lines = out.getvalue().splitlines()
    assert lines[0].strip() == "demo: 3/7 fits, 0:01:05 elapsed"
    cells = [[cell.strip() for cell in line.strip("│┃").split(cut)] for line in lines for cut in "│┃" if cut in line]
    assert cells == [
        ["Model", "Fits", "Running", "Validation auc", "Elapsed", "Remaining"],
        ["marble", "2/3", "-", "0.850 ± 0.071", "0:01:05", "0:01:00"],
        ["abmil", "0/3 1 failed", "repeat 1", "-", "0:00:00", "?"],
        ["odd [red] name", "0/1", "-", "-", "0:00:00", "?"],
    ]


def test_a_fit_under_way_shows_its_last_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    run = PLAN[0].model_copy(update={"folder": str(tmp_path)})
    board = Board([run], clock=clock)
    assert board.rows()[0].epochs == (None,)
    for epoch, now in ((2, 10.0), (3, 14.0)):
        clock.now = now
        (tmp_path / "history.csv").write_text(f"epoch,train_loss,val_loss,val_auc\n1,0.9,1,0.5\n{epoch},0.41,1,0.812\n")
        row = board.rows()[0]
    left = (COMMON.epochs - 3) * 4.0  # the one epoch that was seen took four seconds
    assert row.epochs == (EpochDone(3, COMMON.epochs, 0.41, 0.812, left),)
    out = io.StringIO()
    Console(file=out, width=160).print(board_table("demo", board))
    assert f"repeat 0: epoch 3/{COMMON.epochs}, loss 0.41, auc 0.812, at most 0:01:48 left" in out.getvalue()
    lines = _Lines(board)
    lines.show(None)
    assert capsys.readouterr().out == (
        f"[0/1] under way: marble, repeat 0: epoch 3/{COMMON.epochs}, loss 0.41, auc 0.812, at most 0:01:48 left\n"
    )


def test_stopping_says_what_is_kept() -> None:
    def stopped() -> None:
        with follow("demo", PLAN, 1, Console(file=io.StringIO(), force_terminal=True)) as tell:
            tell(_done(PLAN[0], 0.5, 1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="1 of 6 fits are done, and those under way are kept"):
        stopped()


def test_elsewhere_than_on_a_terminal_a_line_per_fit(capsys: pytest.CaptureFixture[str]) -> None:
    with follow("demo", PLAN, 1, Console(file=io.StringIO(), force_terminal=False)) as tell:
        tell(_done(PLAN[0], 0.8125, 1))
        tell(RunOutcome(PLAN[1], None, "no such bag"))
    assert capsys.readouterr().out.splitlines() == [
        "[1/6] marble, repeat 0: validation auc 0.812 after 2 of 3 epochs",
        "[2/6] abmil, repeat 0: failed: no such bag",
    ]


class Broken(io.StringIO):
    """A terminal that is gone from the `good`-th write on."""

    def __init__(self, error: type[OSError], good: int) -> None:
        super().__init__()
        self.error, self.good = error, good

    def write(self, text: str) -> int:
        self.good -= 1
        if self.good < 0:
            raise self.error(5, "gone")
        return super().write(text)


@pytest.mark.parametrize("error", [OSError, BrokenPipeError])
@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_a_terminal_that_is_gone_does_not_reach_the_runs(error: type[OSError], good: int) -> None:
    before = sys.stdout, sys.stderr
    outcomes = []
    with follow("demo", PLAN, 1, Console(file=Broken(error, good), force_terminal=True)) as tell:
        for run in PLAN:
            tell(_done(run, 0.5, 1))
            outcomes.append(run)
    assert outcomes == PLAN
    assert (sys.stdout, sys.stderr) == before


def test_a_pipe_that_nobody_reads_does_not_reach_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError, 0))
    with follow("demo", PLAN, 1, Console(file=io.StringIO(), force_terminal=False)) as tell:
        tell(_done(PLAN[0], 0.5, 1))


def test_an_error_of_the_display_itself_does_not_reach_the_runs() -> None:
    nonsense: dict[str, Any] = {"fit": {}, "seconds": 1.0}
    with follow("demo", PLAN, 1, Console(file=io.StringIO(), force_terminal=True)) as tell:
        tell(RunOutcome(PLAN[0], nonsense))
        tell(_done(PLAN[1], 0.5, 1))


def test_errors_of_the_runs_do_reach_the_caller() -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        follow("demo", PLAN, 1, Console(file=io.StringIO(), force_terminal=True)),
    ):
        raise KeyboardInterrupt


def test_a_real_batch_ends_with_a_full_table(tmp_path: Path) -> None:
    runs = plan(tmp_path, models='[{ name = "mean", hidden = 8 }]', epochs=1)
    out = io.StringIO()
    with follow("tiny", runs, 1, Console(file=out, force_terminal=True, width=110)) as tell:
        outcomes = run_all(runs, Inline(), tell)
    assert all(outcome.ok for outcome in outcomes)
    assert f"tiny: {len(runs)}/{len(runs)} fits" in out.getvalue()


HELD = """
import os
os.open(os.ttyname(0), os.O_RDWR)  # a session's first terminal becomes the one that hangs up
from marble.cli import main
main()
"""


def test_closing_the_terminal_does_not_end_the_command(tmp_path: Path) -> None:
    plan(tmp_path, models='[{ name = "mean", hidden = 8 }, { name = "max", hidden = 8 }]')
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", HELD, "run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    seen = b""
    ends = time.monotonic() + 120
    while b"Running" not in seen and time.monotonic() < ends:
        if select.select([ours], [], [], 1.0)[0]:
            seen += os.read(ours, 65536)
    os.close(ours)  # the user closes the window
    assert b"Running" in seen, seen.decode(errors="replace")
    process.wait(timeout=120)
    assert process.returncode >= 0  # not ended by a signal
    assert (tmp_path / "out" / "tiny" / "report" / "index.html").exists()
