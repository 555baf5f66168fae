"""`marble export`: bags to other tools' files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths, terminal


def export(
    store: Annotated[Path, typer.Argument(help="A store of bags, or the folder that holds it.")],
    out: Annotated[Path, typer.Option(help="Folder for TRIDENT-shaped HDF5 files, one folder per level.")],
) -> None:
    """Bags -> HDF5 per level, as TRIDENT writes it, so that every tool downstream reads our levels."""
    paths.existing_folder(store, "store of bags")
    paths.output_folder(out)
    from marble.interchange import export_store

    failed: list[tuple[str, str]] = []
    for path in export_store(store, out, failed):
        typer.echo(f"wrote {path}")
    terminal.failures(failed)
