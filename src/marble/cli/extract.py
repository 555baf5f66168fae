"""`marble extract`: slides to bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import terminal
from marble.cli.slide_options import (
    Magnifications,
    Mpp,
    MppCsv,
    Outlines,
    Sources,
    TilePx,
    Upsample,
    clock,
    pyramid_spec,
    weight_files,
)


def extract(
    sources: Sources,
    store: Annotated[Path, typer.Option(help="Bags go to STORE/<fingerprint of the settings>/.")],
    magnifications: Magnifications = None,
    mpp: Mpp = None,
    tile_px: TilePx = 256,
    encoder: Annotated[str, typer.Option(help="Name, or one for each level, comma-separated.")] = "lite0",
    weights: Annotated[list[str] | None, typer.Option(help="ENCODER=FILE: local weights (safetensors).")] = None,
    allow_download: Annotated[bool, typer.Option(help="Fetch weights that are not here.")] = False,
    device: str = "cpu",
    workers: Annotated[int, typer.Option(help="Slides side by side, in processes of their own.", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each; 0 takes every core.", min=0)] = 0,
    timeout: Annotated[float | None, typer.Option(help="Give up on a slide after this many seconds.")] = None,
    allow_upsample: Upsample = False,
    mpp_csv: MppCsv = None,
    manifest: Annotated[Path | None, typer.Option(help="sha256 list; a slide that differs is refused.")] = None,
    outlines: Outlines = None,
    hash_source: Annotated[bool, typer.Option("--hash", help="Put each slide's SHA-256 into its record.")] = False,
) -> None:
    """Slides -> bags: one nested lattice, every tile embedded, resumable. Start it again to go on."""
    from marble.compute import Executor, Inline, Processes
    from marble.extract import BatchProgress, ExtractSpec, Machine, extract_many, find_slides

    spec = ExtractSpec.parse(
        {
            "pyramid": pyramid_spec(magnifications, mpp, tile_px, allow_upsample),
            "encoders": tuple(encoder.split(",")),
        }
    )
    for caution in spec.cautions():
        typer.secho(f"caution: {caution}", err=True, fg=typer.colors.YELLOW)
    found = find_slides(sources)
    machine = Machine(device, threads, weight_files(weights), allow_download)
    alone = workers == 1 and timeout is None
    executor: Executor = Inline() if alone else Processes(workers, timeout_s=timeout)
    with terminal.progress("extracting", len(found)) as bar:

        def tell(at: BatchProgress) -> None:
            bar(f"{at.last.slide_id}: {at.last.status}, {at.tiles_per_s:.0f} tiles/s, {clock(at.seconds_left)} left")

        summary = extract_many(
            found,
            spec,
            store,
            executor=executor,
            machine=machine,
            mpp_csv=mpp_csv,
            manifest=manifest,
            outlines=outlines,
            hash_source=hash_source,
            on_slide=tell,
        )
    rows = [(o.slide_id, o.status, o.tiles, o.reason or "") for o in summary.outcomes]
    terminal.table(f"bags in {summary.store}", ["slide", "status", "tiles", "reason"], rows)
    terminal.failures([(str(o.path), str(o.reason)) for o in summary.outcomes if o.status == "failed"])
