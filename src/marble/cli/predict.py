"""`marble predict`: ask a trained run about slides or bags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marble.cli import paths, terminal
from marble.cli.cluster_options import Ray, WorkerCpus, WorkerGpus, Workers, cluster
from marble.cli.companions import workers_go_with_ray
from marble.cli.pseudonym_options import Pseudonyms, written
from marble.cli.run_options import Device
from marble.cli.slide_options import (
    RunSpecFile,
    SlideMpp,
    SlideOutlines,
    Weights,
    heard_by_slides,
    preparing_flags,
    weight_files,
)
from marble.errors import InputError
from marble.storage import location, pull

if TYPE_CHECKING:
    from marble.asking import AskedRow


def predict(
    run_folder: Annotated[
        Path, typer.Argument(parser=location, metavar="RUN", help="A finished run, or a folder of one model's repeats.")
    ],
    sources: Annotated[
        list[Path],
        typer.Argument(parser=location, metavar="SOURCES...", help="Slides, folders of slides, bags or stores."),
    ],
    out: Annotated[
        Path | None, typer.Option(parser=location, metavar="FILE", help="Write the rows to this CSV file.")
    ] = None,
    beside: Annotated[
        list[Path] | None, typer.Option("--with", parser=location, metavar="RUN", help="Further runs to average with.")
    ] = None,
    allow_training_slides: Annotated[
        bool, typer.Option(help="Slides the run was trained on are no failure; their rows still say so.")
    ] = False,
    weights: Weights = None,
    device: Device = "auto",
    mpp: SlideMpp = None,
    outlines: SlideOutlines = None,
    spec: RunSpecFile = None,
    pseudonyms: Pseudonyms = None,
    routed: Annotated[
        bool, typer.Option("--routed", help="Only the fine tiles `marble route` found worth it.")
    ] = False,
    budget: Annotated[float | None, typer.Option(help="Routed, with this share of the fine tiles, as 0.25.")] = None,
    workers: Workers = None,
    ray: Ray = None,
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
) -> None:
    """Ask a trained model, or several together, about slides or bags: one row each."""
    workers_go_with_ray(ray, worker_cpus, worker_gpus)
    for folder in (run_folder, *(beside or ())):
        paths.run_folder(folder)
    for source in sources:
        pull(source)
    if not any(source.exists() for source in sources):
        raise InputError("no such slide, bag or store", where=sources[0] if pseudonyms is None else "SOURCES")
    written(pseudonyms)
    if out is not None:
        paths.own_table(out, "slide_id,part,")
    from marble import files
    from marble.asking import Panel, ask_all, ask_here
    from marble.compute import Processes
    from marble.ensemble import runs_together
    from marble.extract import SLIDE_LIMITS
    from marble.preparing import SlideOptions
    from marble.reports.tables import rows_csv

    given = preparing_flags(weights, mpp, outlines, spec) | {"--pseudonyms": pseudonyms is not None}
    heard_by_slides(sources, given)
    folders = runs_together((run_folder, *(beside or ())))
    panel, options = (
        Panel(tuple(folders), device, routed, budget),
        SlideOptions(device, weight_files(weights), mpp, outlines, spec, pseudonyms),
    )
    if ray is not None:
        answered = ask_all(sources, panel, options, cluster(ray, workers, worker_cpus, worker_gpus))
    else:  # in processes of their own, so that a decoder that crashes or hangs costs one slide
        asking = ask_here if workers in (None, 1) else ask_all
        answered = asking(sources, panel, options, Processes(workers or 1, limits=SLIDE_LIMITS))
    rows: list[dict[str, Any]] = []
    failed: list[tuple[str, str]] = []
    trained_on: list[tuple[str, str]] = []
    cautions: list[tuple[str, str]] = []
    for row in _kept_if_stopped(answered, out):
        if row.cells is None:
            failed.append((row.name, str(row.failed)))
            continue
        rows.append(row.cells)
        said = list(row.warnings)
        if row.trained_on is not None and not allow_training_slides:
            trained_on.append((row.name, f"{row.trained_on}. Leave training slides out, or --allow-training-slides"))
            said.remove(row.trained_on)
        cautions += [(row.name, text) for text in said]
    if rows:
        title = f"Predictions of {run_folder}" + (f", {len(folders)} runs together" if len(folders) > 1 else "")
        columns = [name for name in rows[0] if name != "warnings"]  # sentences, which have lines of their own
        cells = [[row[name] for name in columns] for row in rows]
        rest = "--out FILE.csv writes all of it" if out is None else f"all of it is in {out}"
        terminal.results(columns, cells, title=title, rest=rest)
    for line in terminal.gathered(cautions):
        typer.secho(f"caution: {line}", err=True, fg=typer.colors.YELLOW)
    if out is not None and rows:
        typer.echo(f"wrote {files.publish(out, rows_csv(rows))}")
    terminal.failed([terminal.blamed(name, reason) for name, reason in failed] + terminal.gathered(trained_on))


def _kept_if_stopped(answered: Iterable[AskedRow], out: Path | None) -> Iterator[AskedRow]:
    """The rows as they come; when it is stopped, those so far go to a file, but to none that would pass for all."""
    from marble import files
    from marble.reports.tables import rows_csv

    rows: list[dict[str, Any]] = []
    try:
        for row in answered:
            rows += [] if row.cells is None else [row.cells]
            yield row
    except KeyboardInterrupt as stop:
        if out is None or not rows:
            raise
        kept = files.publish(out.with_name(f"{out.stem}.stopped{out.suffix}"), rows_csv(rows))
        raise type(stop)(f"the {len(rows)} answers so far are in {kept}") from None
