"""What is shown while a batch of fits runs: a live table on a terminal, sparse lines elsewhere.

The display is the least important part of a run. Whatever goes wrong with it (a terminal that was closed, a pipe that
nobody reads any more), it falls silent and the runs go on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from marble.cli.board import Board, BoardRow, EpochDone, name_of
from marble.cli.terminal import QUIET_S
from marble.training.protocol import RunOutcome
from marble.training.results import validation_text
from marble.training.run import PlannedRun

REFRESH_S = 1.0


@contextmanager
def follow(
    title: str, planned: Sequence[PlannedRun], workers: int, console: Console
) -> Iterator[Callable[[RunOutcome], None]]:
    """Show how a batch gets on; yields the function that is to be told of every run that ends."""
    board = Board(planned, workers)
    shown = _LiveTable(title, board, console) if console.is_interactive else _Lines(board)
    with _outliving_the_terminal(), shown:
        try:
            yield shown.ended
        except KeyboardInterrupt as stop:
            kept = f"{shown.count} of {len(planned)} fits are done, and those under way are kept up to their last epoch"
            raise type(stop)(kept) from None


def say(text: str) -> None:
    """Print, unless there is nobody left to read it."""
    with suppress(OSError, ValueError):  # ValueError: the stream was closed by ourselves
        print(text, flush=True)


def board_table(title: str, board: Board) -> Table:
    """The board as a table for the terminal."""
    left_s = board.remaining_s()
    left = "" if left_s is None else f", about {_duration(left_s)} left"
    rows = board.rows()
    ended = sum(row.done + row.failed for row in rows)
    heading = f"{escape(title)}: {ended}/{len(board.planned)} fits, {_duration(board.elapsed_s())} elapsed{left}"
    table = Table(title=heading, title_justify="left", header_style="bold")
    table.add_column("Model", overflow="fold")
    for name in ("Fits", "Running", f"Validation {board.metric}", "Elapsed", "Remaining"):
        table.add_column(name, justify="right", no_wrap=name not in ("Fits", "Running"))
    for row in rows:
        table.add_row(*_cells(row, board))
    return table


def _cells(row: BoardRow, board: Board) -> list[str]:
    fits = f"{row.done}/{row.total}" + (f" [red]{row.failed} failed[/red]" if row.failed else "")
    metric = "-" if row.mean is None else f"{row.mean:.3f}" + ("" if row.sd is None else f" ± {row.sd:.3f}")
    running = "\n".join(
        f"repeat {repeat}" + (f": {_epoch(at, board.metric)}" if at else "")
        for repeat, at in zip(row.running, row.epochs, strict=True)
    )
    remaining = "?" if row.remaining_s is None else _duration(row.remaining_s)
    return [escape(row.model), fits, running or "-", metric, _duration(row.elapsed_s), remaining]


def _epoch(at: EpochDone, metric: str) -> str:
    loss = "" if at.loss is None else f", loss {at.loss:.3g}"
    value = "" if at.metric is None else f", {metric} {at.metric:.3f}"
    left = "" if at.seconds_left is None else f", at most {_duration(at.seconds_left)} left"
    return f"epoch {at.epoch}/{at.of}{loss}{value}{left}"


def _said(outcome: RunOutcome) -> str:
    if outcome.record is None:
        return f"failed: {outcome.reason}"
    fit = outcome.record["fit"]
    value = validation_text(outcome.record)
    return f"validation {fit['selected_by']} {value} after {fit['best_epoch']} of {fit['epochs']} epochs"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class _Ticking:
    """Draws from a thread of its own now and then; the first error ends the drawing, not the run."""

    every_s: float

    def __init__(self, board: Board) -> None:
        self.count = 0
        self._board = board
        self._lock = threading.Lock()
        self._broken = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="live display", daemon=True)

    def __enter__(self) -> _Ticking:
        self._safely(self.begin)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.stop()

    def ended(self, outcome: RunOutcome) -> None:
        """A fit has ended."""
        self.count += 1
        with self._lock:
            self._board.ended(outcome)
        self._safely(lambda: self.show(outcome))

    def begin(self) -> None: ...

    def show(self, outcome: RunOutcome | None) -> None:
        """Draw: after a fit has ended, or because time has passed."""

    def stop(self) -> None: ...

    def _tick(self) -> None:
        while not self._over.wait(self.every_s):
            self._safely(lambda: self.show(None))

    def _safely(self, draw: Callable[[], None]) -> None:
        with self._lock:
            if not self._broken:
                try:
                    draw()
                except (Exception, SystemExit):  # rich answers a broken pipe with SystemExit
                    self._broken = True
                    self.stop()


class _LiveTable(_Ticking):
    """The board, drawn once a second."""

    every_s = REFRESH_S

    def __init__(self, title: str, board: Board, console: Console) -> None:
        super().__init__(board)
        self._live = Live(console=console, auto_refresh=False, get_renderable=lambda: board_table(title, board))

    def begin(self) -> None:
        self._live.start(refresh=True)

    def show(self, outcome: RunOutcome | None) -> None:
        self._live.refresh()

    def stop(self) -> None:
        """Give stdout and stderr back, whatever state the display is in."""
        with suppress(Exception, SystemExit):
            self._live.stop()


class _Lines(_Ticking):
    """A line per ended fit, and now and then where the fits under way are."""

    every_s = QUIET_S

    def show(self, outcome: RunOutcome | None) -> None:
        head = f"[{self.count}/{len(self._board.planned)}]"
        if outcome is not None:
            say(f"{head} {name_of(outcome.planned)}, repeat {outcome.planned.about['repeat']}: {_said(outcome)}")
            return
        for row in self._board.rows():
            for repeat, at in zip(row.running, row.epochs, strict=True):
                if at is not None:
                    say(f"{head} under way: {row.model}, repeat {repeat}: {_epoch(at, self._board.metric)}")


@contextmanager
def _outliving_the_terminal() -> Iterator[None]:
    """A closed terminal sends SIGHUP, which would end this process and, if not ignored, its workers."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
