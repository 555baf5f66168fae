"""`marble demo`: the whole way on made-up slides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths
from marble.cli.report import write_and_show


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo-out"),
    workers: Annotated[int, typer.Option(help="Processes that work side by side.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Another seed draws other slides.", min=0)] = 0,
) -> None:
    """Made-up slides -> bags -> trained models -> report, in a few minutes, with nothing downloaded."""
    paths.output_folder(out)
    from marble.demo import run_demo

    for line in run_demo(out, workers, write_and_show, seed):
        typer.echo(line)
