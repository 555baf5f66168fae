"""What the terminal shows: tables, a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

console = Console()


class Bar(Protocol):
    """Something that can be moved on by one item, with a word on it."""

    def __call__(self, text: str) -> None: ...


@contextmanager
def progress(what: str, total: int) -> Iterator[Bar]:
    """A bar on a terminal; one line per item elsewhere, so that logs stay readable."""
    if not console.is_terminal:
        done = 0

        def line(text: str) -> None:
            nonlocal done
            done += 1
            typer.echo(f"[{done}/{total}] {text}")

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", style="dim"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=total, text="")

        def move(text: str) -> None:
            bar.update(task, advance=1, text=text)

        yield move


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; numbers right-aligned."""
    shown = Table(title=title, title_justify="left", header_style="bold")
    for index, name in enumerate(header):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(shown)


def failures(items: Sequence[tuple[str, str]]) -> None:
    """List what failed and why, then leave with a non-zero exit code; does nothing if nothing failed."""
    if not items:
        return
    for name, reason in items:
        typer.secho(f"failed: {name}: {reason}", err=True, fg=typer.colors.RED)
    raise typer.Exit(1)
