"""`marble plan`: what an extraction will cost."""

from __future__ import annotations

import typer

from marble.cli.slide_options import Magnifications, Mpp, MppCsv, Sources, TilePx, clock, pixel_sizes, pyramid_spec


def plan(
    sources: Sources,
    magnifications: Magnifications = None,
    mpp: Mpp = None,
    tile_px: TilePx = 256,
    encoder: str = "lite0",
    mpp_csv: MppCsv = None,
) -> None:
    """How many tiles, how many bytes and how long, before you start."""
    from marble.extract import ExtractSpec, find_slides
    from marble.extract import plan as estimate

    spec = ExtractSpec.parse(
        {"pyramid": pyramid_spec(magnifications, mpp, tile_px, False), "encoders": tuple(encoder.split(","))}
    )
    cost = estimate(find_slides(sources), spec, mpps=pixel_sizes(mpp_csv))
    typer.echo(f"{cost.slides} slides, {cost.sampled} of them looked at")
    levels = ", ".join(f"level {k}: {count:,}" for k, count in enumerate(cost.tiles))
    typer.echo(f"tiles: {levels}")
    typer.echo(f"bags: {cost.bytes / 2**30:.2f} GiB; time with one process here: {clock(cost.seconds)}")
    for path, reason in cost.unusable:
        typer.secho(f"will not give a bag: {path}: {reason}", err=True, fg=typer.colors.YELLOW)
