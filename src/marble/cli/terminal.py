"""What the terminal shows: tables, a progress bar on a terminal, sparse plain lines elsewhere. rich is loaded late."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

import typer

if TYPE_CHECKING:
    from rich.console import Console

#: elsewhere than on a terminal a long item says where it is this often, and an item that ends sooner says nothing
QUIET_S = 30.0
#: of a long list of names so many are said
SHOWN_NAMES = 5


@cache
def console() -> Console:
    """Standard output, as rich sees it.

    FORCE_COLOR, which notebooks and CI systems set, makes rich take anything for a terminal: colours are welcome there,
    but nothing that moves, since every step of a bar would be a line of its own.
    """
    from rich.console import Console

    return Console(force_interactive=None if sys.stdout.isatty() else False)


class Bar(Protocol):
    """Moved on by one item with a word on it; `within` says how far the item under way is."""

    def __call__(self, text: str) -> None: ...

    def within(self, done: int, total: int, text: str) -> None: ...


class _Lines:
    """One line per item, and one now and then within it, so that logs stay readable."""

    def __init__(self, what: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done = total, 0
        self._clock, self._said = clock, clock()

    def __call__(self, text: str) -> None:
        self.done += 1
        self._said = self._clock()
        typer.echo(f"[{self.done}/{self.total}] {text}")

    def within(self, done: int, total: int, text: str) -> None:
        if self._clock() - self._said >= QUIET_S:
            self._said = self._clock()
            typer.echo(f"[{self.done}/{self.total}] under way: {text}")


class _RichBar:
    """A bar for the items and one for the item under way."""

    def __init__(self, what: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.done = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", style="dim", markup=False),
        )
        self.shown = Progress(*columns, console=console())
        self._items = self.shown.add_task(what, total=total, text="")
        self._inside = self.shown.add_task("", total=None, text="", visible=False)

    def __call__(self, text: str) -> None:
        self.done += 1
        self.shown.update(self._items, advance=1, text=text)
        self.shown.update(self._inside, visible=False)

    def within(self, done: int, total: int, text: str) -> None:
        self.shown.update(self._inside, completed=done, total=total, text=text, visible=True)


@contextmanager
def progress(what: str, total: int) -> Iterator[Bar]:
    """A bar on a terminal, plain lines elsewhere; Ctrl-C says how many items are done and kept."""
    bar: _Lines | _RichBar
    try:
        if console().is_interactive:
            bar = _RichBar(what, total)
            with bar.shown:
                yield bar
        else:
            bar = _Lines(what, total)
            yield bar
    except KeyboardInterrupt as stop:
        raise type(stop)(f"{bar.done} of {total} are done and kept") from None


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], *, lean: bool = False) -> None:
    """Print a table that fits the terminal: numbers right-aligned, long cells folded; `lean` draws no lines."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    style: dict[str, Any] = {"box": None, "pad_edge": False} if lean else {"box": box.SIMPLE_HEAD, "pad_edge": False}
    shown = Table(header_style="bold", **style)
    for index, name in enumerate(header):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        shown.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(escape(_text(cell)) for cell in row))
    if title:  # on a line of its own, so that a path in it stays whole however narrow the table is
        console().print(escape(title), style="italic", highlight=False, soft_wrap=True)
    console().print(shown)


def _text(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def results(
    header: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "", rest: str = "all of it is in table.csv"
) -> None:
    """Print a results table: an interval below its figure, and as many columns as fit, the first always among them.

    `rest` says where the columns are that did not fit.
    """
    cells = [
        [cell if isinstance(cell, int | float) else str(cell).replace(" [", "\n[") for cell in row] for row in rows
    ]
    names = [name.replace(" (", "\n(") for name in header]
    widths = [
        max(len(line) for cell in column for line in _text(cell).split("\n"))
        for column in zip(names, *cells, strict=True)
    ]
    room, shown = console().width - 2, 0  # a blank at either edge, three between columns
    while shown < len(widths) and sum(widths[: shown + 1]) + 3 * shown <= room:
        shown += 1
    shown = max(shown, 2)
    table(title, names[:shown], [row[:shown] for row in cells])
    if shown < len(header):
        typer.echo(f"Not shown for want of room: {', '.join(header[shown:])}; {rest}")


def failures(items: Sequence[tuple[str, str]]) -> None:
    """List what failed and why, a line each, then leave with exit code 1; does nothing if nothing failed."""
    failed([blamed(name, reason) for name, reason in items])


def failed(lines: Sequence[str]) -> None:
    """Print these lines as failures, then leave with exit code 1; does nothing without any."""
    for line in lines:
        typer.secho(f"failed: {line}", err=True, fg=typer.colors.RED)
    if lines:
        raise typer.Exit(1)


def gathered(items: Sequence[tuple[str, str]]) -> list[str]:
    """One line for each reason, in their order, with the slides it is said of: the same words are not said twice."""
    slides: dict[str, list[str]] = {}
    for name, reason in items:
        slides.setdefault(reason, []).append(name)
    return [
        blamed(names[0], reason) if len(names) == 1 else f"{len(names)} slides ({few(names)}): {reason}"
        for reason, names in slides.items()
    ]


def few(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def blamed(name: str, reason: str) -> str:
    """One line: which item, and why; the item is named once."""
    text = " ".join(reason.split()).removeprefix(f"{PurePath(name).name}: ")
    where, colon, _ = text.partition(": ")
    said = text if "/" in name else where if colon else ""  # an id such as 8 may be a word of any sentence
    named = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-]|\.\w)", said)  # a.tif is not named where a.tiff is
    return text if named or f"'{name}'" in text else f"{name}: {text}"


def size(count: float) -> str:
    """A number of bytes in the unit that fits it."""
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1000 or unit == "TiB":  # so that no figure needs more than three digits
            return f"{count:.3g} {unit}"
    raise AssertionError


def duration(seconds: float) -> str:
    """A length of time as people say it; `?` for one that is not known."""
    if not 0 <= seconds < 1e9:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
