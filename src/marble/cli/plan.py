"""`marble plan`: what an extraction will cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from marble.cli import paths, terminal
from marble.cli import slide_options as slides
from marble.cli.cluster_options import Ray, WorkerCpus, WorkerGpus, Workers, cluster
from marble.cli.companions import goes_with, workers_go_with_ray

if TYPE_CHECKING:
    from marble.extract import Estimate
    from marble.extract.cost import Prices, SlideCost


def plan(
    sources: slides.Sources,
    magnifications: slides.Magnifications = None,
    mpp: slides.Mpp = None,
    tile_px: slides.TilePx = None,
    coverage: slides.Coverage = None,
    encoder: slides.EncoderName = None,
    spec: slides.SpecFile = None,
    pairs: slides.Set = None,
    allow_upsample: slides.Upsample = None,
    mpp_csv: slides.MppCsv = None,
    workers: Workers = None,
    ray: Ray = None,
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
    core_hour: Annotated[float, typer.Option(help="Price of a core for an hour, with --ray.", min=0)] = 0,
    gpu_hour: Annotated[float, typer.Option(help="Price of a GPU for an hour, with --ray.", min=0)] = 0,
    gib_month: Annotated[float, typer.Option(help="Price of a GiB of storage for a month, with --ray.", min=0)] = 0,
) -> None:
    """How many tiles, how many bytes and how long, before you start."""
    paths.sources(sources)
    workers_go_with_ray(ray, worker_cpus, worker_gpus)
    if ray is None:
        prices = {"--core-hour": core_hour, "--gpu-hour": gpu_hour, "--gib-month": gib_month}
        goes_with("--ray", {flag: price > 0 for flag, price in prices.items()} | {"--workers": workers is not None})
    if mpp_csv is not None:
        paths.existing_file(mpp_csv, "table")
    lattice = slides.LatticeFlags(magnifications, mpp, tile_px, coverage, allow_upsample)
    wanted = slides.settings(spec, pairs, lattice, encoder)

    from marble.extract import plan as estimate
    from marble.extract import slides_in
    from marble.extract.cost import Prices
    from marble.slides.readers.elsewhere import reading_elsewhere

    offer = None if ray is None else cluster(ray, workers, worker_cpus, worker_gpus).offer()
    found = slides_in(sources)
    sizes = slides.pixel_sizes(mpp_csv, found)
    with reading_elsewhere() as desk:
        cost = estimate(found, slides.extract_spec(wanted, spec), mpps=sizes, desk=desk)
    typer.echo(f"{cost.slides} slides, {cost.sampled} of them looked at")
    levels = ", ".join(f"level {k}: {count:,}" for k, count in enumerate(cost.tiles))
    typer.echo(f"tiles: {levels}")
    took = terminal.duration(cost.seconds)
    typer.echo(f"bags: {terminal.size(cost.bytes)}; time with one process here: {took}")
    typer.echo(f"a slide: {_each(cost.each)}")
    if offer is not None:
        typer.echo(f"cluster: {offer.nodes} nodes, {offer.cpus:g} cores, {offer.gpus:g} GPUs")
        for line in _on_cluster(cost, offer.workers, worker_cpus, worker_gpus, Prices(core_hour, gpu_hour, gib_month)):
            typer.echo(line)
    for path, reason in cost.unusable:
        typer.secho(f"will not give a bag: {terminal.blamed(str(path), reason)}", err=True, fg=typer.colors.YELLOW)
    if len(cost.unusable) == cost.sampled:
        raise typer.Exit(1)


def _each(slide: SlideCost) -> str:
    return (
        f"{terminal.size(slide.slide_bytes)} in {slide.reads:,.0f} reads, {slide.open_s:.2g} s to find tissue, "
        f"{slide.read_s:.3g} s to decode and {slide.encode_s:.3g} s to encode, on one core here"
    )


def _on_cluster(cost: Estimate, workers: int, cpus: float, gpus: float, prices: Prices) -> Iterator[str]:
    """What the slides cost there, if its cores are like those here."""
    from marble.extract.cost import Fleet, Training, bill

    training = Training()
    # Cores are timed here; a GPU is not, so that its workers are taken as cores that are no faster.
    found = bill(cost.each, cost.slides, Fleet(workers, cpus), training)
    paid = found.extract_hours * min(workers, cost.slides) * (cpus * prices.core_hour + gpus * prices.gpu_hour)
    slower = "; a GPU encodes faster than the core that was timed" if gpus else ""
    yield f"time with {workers} workers of {cpus:g} cores: {terminal.duration(found.extract_hours * 3600)}{slower}"
    yield f"training: {found.steps:,} steps for {training.folds} folds of {training.epochs} epochs"
    if any((prices.core_hour, prices.gpu_hour, prices.gib_month)):
        kept = found.bag_bytes / 2**30 * prices.gib_month
        yield f"price: {paid:,.2f} for the machines, {kept:,.2f} a month for the bags"
