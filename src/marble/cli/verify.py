"""`marble verify`: hash everything again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths


def verify(target: Annotated[Path, typer.Argument(help="A store, a run, or a folder of runs.")]) -> None:
    """Hash everything again and name each fault. Exit code 1 if there is one."""
    paths.existing_folder(target)
    from marble.identifiers import printable
    from marble.verify import verify_path

    result = verify_path(target)
    for note in result.notes:
        typer.secho(f"note: {printable(note)}", err=True)
    for fault in result.faults:
        typer.secho(f"fault: {printable(fault)}", err=True, fg=typer.colors.RED)
    typer.echo(f"{result.checked} checked, {len(result.faults)} faults")
    raise typer.Exit(1 if result.faults else 0)
