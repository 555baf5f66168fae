"""`marble predict`: ask a trained run about slides or bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli import paths, terminal
from marble.cli.slide_options import Device, RunSpecFile, SlideMpp, SlideOutlines, Weights, weight_files
from marble.errors import InputError


def predict(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one finished run.")],
    sources: Annotated[list[Path], typer.Argument(help="Slides, bags or stores.")],
    out: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
    allow_training_slides: Annotated[
        bool, typer.Option(help="Slides the run was trained on are no failure; their rows still say so.")
    ] = False,
    weights: Weights = None,
    device: Device = "cpu",
    mpp: SlideMpp = None,
    outlines: SlideOutlines = None,
    spec: RunSpecFile = None,
    routed: Annotated[
        bool, typer.Option("--routed", help="Only the fine tiles `marble route` found worth it.")
    ] = False,
    budget: Annotated[float | None, typer.Option(help="Routed, with this share of the fine tiles, as 0.25.")] = None,
) -> None:
    """Ask a trained model about slides or bags: one row each."""
    paths.existing_folder(run_folder, "folder of a run")
    if not any(source.exists() for source in sources):
        raise InputError("no such slide, bag or store", where=sources[0])
    if out is not None:
        paths.output_file(out)
    from marble import files
    from marble.compute import describe
    from marble.prediction import Predictor, SlideOptions, bags_of
    from marble.reports.tables import rows_csv

    predictor = Predictor(run_folder, routed=routed, budget=budget)
    rows: list[dict[str, Any]] = []
    failed: list[tuple[str, str]] = []
    options = SlideOptions(device, weight_files(weights), mpp, outlines, spec)
    for name, bag in bags_of(sources, predictor.run, options, predictor.routing):
        try:
            if isinstance(bag, Exception):
                raise bag
            answer = predictor.answer(bag)
            rows.append(answer.row())
            if answer.membership.part == "train" and not allow_training_slides:
                failed.append((name, f"{answer.membership.warning}. Leave it out, or pass --allow-training-slides"))
        except Exception as error:  # the other sources are still answered
            failed.append((name, describe(error)))
    if rows:
        terminal.table(f"Predictions of {run_folder}", list(rows[0]), [list(row.values()) for row in rows])
    if out is not None and rows:
        typer.echo(f"wrote {files.publish(out, rows_csv(rows))}")
    terminal.failures(failed)
