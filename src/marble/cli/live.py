"""What is shown while a batch runs: a live table on a terminal, a line per ended fit elsewhere.

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

from marble.cli.board import Board, BoardRow, name_of
from marble.training.protocol import RunOutcome
from marble.training.run import PlannedRun

REFRESH_S = 1.0


@contextmanager
def follow(
    title: str, planned: Sequence[PlannedRun], workers: int, console: Console
) -> Iterator[Callable[[RunOutcome], None]]:
    """Show how a batch gets on; yields the function that is to be told of every run that ends."""
    with _outliving_the_terminal():
        if console.is_terminal:
            board = Board(planned, workers)
            with _LiveTable(title, board, console) as table:
                yield table.ended
        else:
            ended = 0

            def line(outcome: RunOutcome) -> None:
                nonlocal ended
                ended += 1
                about = outcome.planned.about
                say(f"[{ended}/{len(planned)}] {name_of(outcome.planned)}, repeat {about['repeat']}: {_said(outcome)}")

            yield line


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
        table.add_column(name, justify="right", no_wrap=name != "Fits")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: BoardRow) -> list[str]:
    fits = f"{row.done}/{row.total}" + (f" [red]{row.failed} failed[/red]" if row.failed else "")
    metric = "-" if row.mean is None else f"{row.mean:.3f}" + ("" if row.sd is None else f" ± {row.sd:.3f}")
    running = ", ".join(f"repeat {repeat}" for repeat in row.running) or "-"
    remaining = "?" if row.remaining_s is None else _duration(row.remaining_s)
    return [escape(row.model), fits, running, metric, _duration(row.elapsed_s), remaining]


def _said(outcome: RunOutcome) -> str:
    if outcome.record is None:
        return f"failed: {outcome.reason}"
    fit = outcome.record["fit"]
    value = fit["val"][fit["selected_by"]]
    return f"validation {fit['selected_by']} {value:.3f} after {fit['best_epoch']} of {fit['epochs']} epochs"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class _LiveTable:
    """Draws the board once a second from a thread of its own; the first error ends the drawing, not the run."""

    def __init__(self, title: str, board: Board, console: Console) -> None:
        self._board = board
        self._lock = threading.Lock()
        self._live = Live(console=console, auto_refresh=False, get_renderable=lambda: board_table(title, board))
        self._broken = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="live table", daemon=True)

    def __enter__(self) -> _LiveTable:
        self._safely(lambda: self._live.start(refresh=True))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._stop()

    def ended(self, outcome: RunOutcome) -> None:
        with self._lock:
            self._board.ended(outcome)
        self._safely(self._live.refresh)

    def _tick(self) -> None:
        while not self._over.wait(REFRESH_S):
            self._safely(self._live.refresh)

    def _safely(self, draw: Callable[[], None]) -> None:
        with self._lock:
            if not self._broken:
                try:
                    draw()
                except (Exception, SystemExit):  # rich answers a broken pipe with SystemExit
                    self._broken = True
                    self._stop()

    def _stop(self) -> None:
        """Give stdout and stderr back, whatever state the display is in."""
        with suppress(Exception, SystemExit):
            self._live.stop()


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
