"""`marble extract`: slides to bags."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marble.cli import paths, terminal
from marble.cli import slide_options as slides
from marble.cli.cluster_options import Ray, WorkerCpus, WorkerGpus, Workers, cluster
from marble.cli.companions import workers_go_with_ray
from marble.cli.pseudonym_options import Pseudonyms, one_kind_of_ids, unnamed_sources, written
from marble.compute.limits import MAX_THREADS
from marble.errors import InputError
from marble.identifiers import printable
from marble.storage import PLACE, location, named

if TYPE_CHECKING:
    from marble.extract import BatchProgress, Progress


def extract(
    sources: slides.Sources,
    store: Annotated[
        Path,
        typer.Option(parser=location, metavar=PLACE, help="Bags go to STORE/<fingerprint of the settings>/."),
    ],
    magnifications: slides.Magnifications = None,
    mpp: slides.Mpp = None,
    tile_px: slides.TilePx = None,
    coverage: slides.Coverage = None,
    min_sharpness: slides.MinSharpness = None,
    max_fold: slides.MaxFold = None,
    max_pen: slides.MaxPen = None,
    max_edge: slides.MaxEdge = None,
    encoder: slides.EncoderName = None,
    spec: slides.SpecFile = None,
    pairs: slides.Set = None,
    weights: slides.Weights = None,
    allow_download: Annotated[bool, typer.Option(help="Fetch weights that are not here.")] = False,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:N or mps; several with commas: cuda:0,cuda:1.")
    ] = "auto",
    precision: Annotated[str | None, typer.Option(help="Of the encoder: float32, float16 or bfloat16.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the stored tokens: float16 or float32.")] = None,
    batch: Annotated[int | None, typer.Option(help="Tiles encoded together (16).", min=1)] = None,
    max_missing: Annotated[float | None, typer.Option(help="Share of tiles that may lack pixels (0.01).")] = None,
    workers: Workers = None,
    ray: Ray = None,
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
    threads: Annotated[
        int,
        typer.Option(
            help="Threads of each worker; 0: cores / workers, --worker-cpus on a cluster.", min=0, max=MAX_THREADS
        ),
    ] = 0,
    timeout: Annotated[float | None, typer.Option(help="Give up on a slide after this many seconds.", min=0)] = None,
    stall: Annotated[float, typer.Option(help="... or after so many seconds without a tile; 0: never.", min=0)] = 900,
    cpu_time: Annotated[float, typer.Option(help="... or so many seconds of processor time; 0: never.", min=0)] = 0,
    memory: Annotated[float, typer.Option(help="GiB a slide may take beyond the encoder; 0: any.", min=0)] = 4,
    recycle: Annotated[int, typer.Option(help="Start a fresh worker process after so many slides.", min=1)] = 64,
    allow_upsample: slides.Upsample = None,
    mpp_csv: slides.MppCsv = None,
    manifest: Annotated[Path | None, typer.Option(help="sha256 list; a slide that differs is refused.")] = None,
    outlines: slides.Outlines = None,
    id_from: slides.IdsFrom = "stem",
    pseudonyms: Pseudonyms = None,
    replace: Annotated[bool, typer.Option(help="Replace bags of other slides that have the same id.")] = False,
    hash_source: Annotated[bool, typer.Option("--hash", help="Put each slide's SHA-256 into its record.")] = False,
    route: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Embed only branches this run's router picks.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Share of fine tiles for --route; else the run's own.")] = None,
) -> None:
    """Slides -> bags: one nested lattice, every tile embedded, resumable. Start it again to go on."""
    private = pseudonyms is not None
    with unnamed_sources(private):
        paths.sources(sources)
    workers_go_with_ray(ray, worker_cpus, worker_gpus)
    paths.output_folder(store, "--store")
    written(pseudonyms)
    one_kind_of_ids(pseudonyms, id_from)
    _existing((mpp_csv, manifest), outlines, route)
    if route is None and budget is not None:
        raise InputError("--budget is a share of what --route chooses from", hint="Give --route RUN too")
    local = slides.weight_files(weights)
    lattice = slides.LatticeFlags(magnifications, mpp, tile_px, coverage, allow_upsample)
    quality = slides.QualityFlags(min_sharpness, max_fold, max_pen, max_edge)
    stored = {"precision": precision, "dtype": dtype, "batch": batch, "max_missing": max_missing}
    wanted = slides.settings(spec, pairs, lattice, encoder, quality, **stored)

    from functools import partial

    from marble import devices
    from marble.compute import Executor, Limits, Processes
    from marble.extract import (
        BatchFacts,
        Machine,
        extract_many,
        ids_of,
        load_encoders,
        slides_in,
    )

    places = ",".join(str(one) for one in devices.choose_several(device))
    chosen = slides.extract_spec(wanted, spec)
    for caution in chosen.cautions():
        typer.secho(f"caution: {caution}", err=True, fg=typer.colors.YELLOW)
    chooser = None
    if route is not None:
        from marble.prediction import chooser_of

        chooser = chooser_of(route, budget)
    with unnamed_sources(private):
        found = slides_in(sources)
    slides.pixel_sizes(mpp_csv, found, private=private)
    ids = ids_of(found, sources, id_from) if pseudonyms is None else _pseudonyms(pseudonyms, store, found)
    if private:
        found.sort(key=ids.__getitem__)  # the order of the files' names tells something of them
    machine = Machine(places, threads, local, allow_download)
    with terminal.progress("extracting", len(found)) as bar:
        executor: Executor
        if ray is not None:
            executor = cluster(ray, workers, worker_cpus, worker_gpus, timeout or None)
        else:  # slides are always read in processes of their own: a decoder that crashes or hangs costs one slide
            limits = Limits(int(memory * 2**30) or None, cpu_time or None, timeout or None, stall or None, recycle)
            prepare = partial(load_encoders, chosen, machine)
            executor = Processes(workers or 1, limits=limits, prepare=prepare)
        summary = extract_many(
            found,
            chosen,
            store,
            facts=BatchFacts(mpp_csv, manifest, outlines, hash_source, ids, private),
            executor=executor,
            machine=machine,
            replace=replace,
            on_progress=partial(_show, bar),
            chooser=chooser,
        )
    rows = [(printable(o.slide_id), o.status, o.tiles, printable(o.reason or "")) for o in summary.outcomes]
    terminal.table(f"bags in {named(summary.store)}", ["slide", "status", "tiles", "reason"], rows)
    terminal.failures([
        (printable(o.slide_id if private else o.path), printable(o.reason))
        for o in summary.outcomes
        if o.status == "failed"
    ])  # fmt: skip


def _existing(tables: Iterable[Path | None], outlines: Path | None, route: Path | None) -> None:
    for table in tables:
        if table is not None:
            paths.existing_file(table, "table")
    if outlines is not None:
        paths.existing_folder(outlines, "folder of outlines")
    if route is not None:
        paths.run_folder(route)


def _pseudonyms(table: Path, store: Path, found: Iterable[Path]) -> dict[Path, str]:
    from marble.pseudonyms import pseudonyms_for, refuse_inside

    refuse_inside(table, store)
    return pseudonyms_for(table, found)


def _show(bar: terminal.Bar, at: BatchProgress | Progress) -> None:
    from marble.extract import BatchProgress

    left = terminal.duration(at.seconds_left)
    if isinstance(at, BatchProgress):
        bar(f"{printable(at.last.slide_id)}: {at.last.status}, {at.tiles_per_s:.0f} tiles/s, {left} left")
        return
    said = f"{at.done:,} of {at.total:,} tiles, {at.tiles_per_s:.0f} tiles/s, {left} left"
    bar.within(at.done, at.total, f"{printable(at.slide_id)}: {said}")
