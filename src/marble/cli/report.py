"""`marble report`: tables, figures and a page from stored predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of finished runs.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and index.html.")] = Path("report"),
) -> None:
    """Tables, figures and a page from the stored predictions alone."""
    paths.existing_folder(runs, "folder of runs")
    paths.output_folder(out)
    write_and_show(runs, out)


def write_and_show(runs: Path, out: Path) -> None:
    """Write the report and print its table, as wide as the terminal is."""
    from contextlib import suppress

    from marble.cli import terminal
    from marble.cli.live import say
    from marble.reports.collect import collect
    from marble.reports.compare import compare
    from marble.reports.page import write_comparison
    from marble.reports.tables import caption, table_rows

    comparison = compare(collect(runs))
    page = write_comparison(comparison, out)
    with suppress(OSError, ValueError, SystemExit):  # nobody is there to read it any more, but the report is written
        terminal.results(*table_rows(comparison))
        say(caption(comparison))
    say(f"report: {page}")
