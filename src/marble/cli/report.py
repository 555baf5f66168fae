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
    """Write the report and print its table."""
    from marble.cli.live import say
    from marble.reports import write_report

    page = write_report(runs, out)
    say((out / "table.md").read_text())
    say(f"report: {page}")
