"""`marble run`: every model on every split, then the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marble.cli import paths, terminal
from marble.cli.cluster_options import Ray, WorkerCpus, WorkerGpus, Workers, side_by_side
from marble.cli.companions import workers_go_with_ray
from marble.cli.report import write_and_show
from marble.cli.run_options import Device
from marble.compute.limits import MAX_THREADS
from marble.storage import PLACE, location, pull

if TYPE_CHECKING:
    from collections.abc import Iterator

    from marble.experiment.stock import Stock


def run(
    experiment: Annotated[Path, typer.Argument(help="Experiment file (TOML).")],
    out: Annotated[Path, typer.Option(parser=location, metavar=PLACE, help="Folder for runs and the report.")] = Path(
        "runs"
    ),
    workers: Workers = None,
    threads: Annotated[
        int, typer.Option(help="BLAS threads of each worker; part of the result.", min=1, max=MAX_THREADS)
    ] = 1,
    device: Device = "auto",
    allow_drift: Annotated[bool, typer.Option(help="Resume runs that another version started; stamped.")] = False,
    ray: Ray = None,
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
) -> None:
    """Train and evaluate every model on every split, then write the report. Start it again to go on."""
    paths.existing_file(experiment)
    workers_go_with_ray(ray, worker_cpus, worker_gpus)
    paths.output_folder(out)
    from marble.specs import read_toml

    read_toml(experiment)  # a slip in its syntax is said before torch is loaded
    from marble import devices
    from marble.cli.live import follow
    from marble.compute import locks
    from marble.errors import MarbleError
    from marble.experiment import Experiment
    from marble.reports.tables import accounted
    from marble.training.asked import note_asked
    from marble.training.protocol import run_all

    where = devices.choose(device)
    loaded = Experiment.load(experiment)
    with locks.hold(out / loaded.name / f".run{locks.SUFFIX}", f"experiment '{loaded.name}'"):
        with terminal.console().status("reading the cohort's bags"):  # each once: a while where they are many
            stock = loaded.stock(out)
        try:
            planned = loaded.plan(out, threads=threads, allow_drift=allow_drift, device=str(where), stock=stock)
        except MarbleError as fault:
            if not stock.left_out or not stock.counts["used"]:  # all of them: to list them would say no more
                raise
            typer.echo(accounted(stock.counts))
            terminal.failures([*_damaged(stock), (loaded.name, str(fault))])  # which may be why
            return
        note_asked(out / loaded.name, planned)
        typer.echo(f"training on {devices.describe(where)}")
        typer.echo(loaded.cohort(out).summary())
        if stock.counts["excluded"]:
            typer.echo(accounted(stock.counts))
        executor = side_by_side(ray, workers, worker_cpus, worker_gpus, threads)
        with follow(loaded.name, planned, workers or 1, terminal.console()) as tell:
            outcomes = run_all(planned, executor, tell)
        pull(out / loaded.name, again=True)  # what other machines have put there
        unreported: list[tuple[str, str]] = []
        if any(outcome.ok for outcome in outcomes):
            try:
                write_and_show(out / loaded.name, out / loaded.name / "report")
            except MarbleError as fault:  # said with what else went wrong, which may be why
                unreported.append(("report", str(fault)))
    failed = ((outcome.planned.folder, str(outcome.reason)) for outcome in outcomes if not outcome.ok)
    terminal.failures([*_damaged(stock), *failed, *unreported])


def _damaged(stock: Stock) -> Iterator[tuple[str, str]]:
    """Every slide whose bag is damaged, with what is wrong and what comes next."""
    from marble.errors import MarbleError

    for slide, error in stock.left_out.items():
        hint = error.hint or "Extract or copy the slide again"
        yield slide, str(MarbleError(f"{error.what}, so the slide was left out", where=error.where, hint=hint))
