"""`marble predict`: ask a trained run about slides or bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli import paths, terminal
from marble.cli.slide_options import Device, RunSpecFile, SlideMpp, SlideOutlines, Weights, weight_files
from marble.errors import InputError


def predict(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A finished run, or a folder of one model's repeats.")
    ],
    sources: Annotated[list[Path], typer.Argument(help="Slides, folders of slides, bags or stores.")],
    out: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
    beside: Annotated[
        list[Path] | None, typer.Option("--with", metavar="RUN", help="Further runs to average with.")
    ] = None,
    allow_training_slides: Annotated[
        bool, typer.Option(help="Slides the run was trained on are no failure; their rows still say so.")
    ] = False,
    weights: Weights = None,
    device: Device = "auto",
    mpp: SlideMpp = None,
    outlines: SlideOutlines = None,
    spec: RunSpecFile = None,
    routed: Annotated[
        bool, typer.Option("--routed", help="Only the fine tiles `marble route` found worth it.")
    ] = False,
    budget: Annotated[float | None, typer.Option(help="Routed, with this share of the fine tiles, as 0.25.")] = None,
) -> None:
    """Ask a trained model, or several together, about slides or bags: one row each."""
    for folder in (run_folder, *(beside or ())):
        paths.existing_folder(folder, "folder of a run")
    if not any(source.exists() for source in sources):
        raise InputError("no such slide, bag or store", where=sources[0])
    if out is not None:
        paths.output_file(out)
    from marble import files
    from marble.compute import Processes, describe
    from marble.ensemble import Ensemble, runs_at
    from marble.extract import SLIDE_LIMITS
    from marble.prediction import Predictor, SlideOptions, bags_of
    from marble.reports.tables import rows_csv

    folders = [found for given in (run_folder, *(beside or ())) for found in runs_at(given)]
    predictors = [Predictor(folder, device=device, routed=routed, budget=budget) for folder in folders]
    asked = predictors[0] if len(predictors) == 1 else Ensemble(predictors)
    rows: list[dict[str, Any]] = []
    failed: list[tuple[str, str]] = []
    cautions: list[tuple[str, str]] = []
    options = SlideOptions(device, weight_files(weights), mpp, outlines, spec)
    reading = Processes(1, limits=SLIDE_LIMITS)  # a decoder that crashes or hangs costs one slide
    for name, bag in bags_of(sources, asked.run, options, predictors[0].routing, executor=reading):
        try:
            if isinstance(bag, Exception):
                raise bag
            answer = asked.answer(bag)
            rows.append(answer.row())
            said = list(answer.warnings)
            if answer.membership.part == "train" and not allow_training_slides:
                failed.append((name, f"{answer.membership.warning}. Leave it out, or pass --allow-training-slides"))
                said.remove(str(answer.membership.warning))
            cautions += [(name, text) for text in said]
        except Exception as error:  # the other sources are still answered
            failed.append((name, describe(error)))
    if rows:
        title = f"Predictions of {run_folder}" + (f", {len(folders)} runs together" if len(folders) > 1 else "")
        columns = [name for name in rows[0] if name != "warnings"]  # sentences, which have lines of their own
        cells = [[row[name] for name in columns] for row in rows]
        rest = "--out FILE.csv writes all of it" if out is None else f"all of it is in {out}"
        terminal.results(columns, cells, title=title, rest=rest)
    for name, text in cautions:
        typer.secho(f"caution: {terminal.blamed(name, text)}", err=True, fg=typer.colors.YELLOW)
    if out is not None and rows:
        typer.echo(f"wrote {files.publish(out, rows_csv(rows))}")
    terminal.failures(failed)
