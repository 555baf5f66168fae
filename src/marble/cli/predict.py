"""`marble predict`: ask a trained run about slides or bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli import paths, terminal
from marble.errors import InputError


def predict(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one finished run.")],
    sources: Annotated[list[Path], typer.Argument(help="Slides, bags or stores.")],
    out: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
) -> None:
    """Ask a trained model about slides or bags: one row each."""
    paths.existing_folder(run_folder, "folder of a run")
    if not any(source.exists() for source in sources):
        raise InputError("no such slide, bag or store", where=sources[0])
    if out is not None:
        paths.output_file(out)
    from marble import files
    from marble.compute import describe
    from marble.prediction import Predictor, bags_of
    from marble.reports.tables import rows_csv

    predictor = Predictor(run_folder)
    rows: list[dict[str, Any]] = []
    failed: list[tuple[str, str]] = []
    for name, bag in bags_of(sources, predictor.run):
        try:
            if isinstance(bag, Exception):
                raise bag
            rows.append(predictor.answer(bag).row())
        except Exception as error:  # the other sources are still answered
            failed.append((name, describe(error)))
    if rows:
        terminal.table(f"Predictions of {run_folder}", list(rows[0]), [list(row.values()) for row in rows])
    if out is not None and rows:
        typer.echo(f"wrote {files.publish(out, rows_csv(rows))}")
    terminal.failures(failed)
