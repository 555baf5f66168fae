"""`marble plan`: what an extraction will cost."""

from __future__ import annotations

import typer

from marble.cli import paths, terminal
from marble.cli import slide_options as slides


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
) -> None:
    """How many tiles, how many bytes and how long, before you start."""
    paths.sources(sources)
    if mpp_csv is not None:
        paths.existing_file(mpp_csv, "table")
    lattice = slides.LatticeFlags(magnifications, mpp, tile_px, coverage, allow_upsample)
    wanted = slides.settings(spec, pairs, lattice, encoder)

    from marble.extract import plan as estimate
    from marble.extract import slides_in
    from marble.slides.readers.elsewhere import reading_elsewhere

    found = slides_in(sources)
    sizes = slides.pixel_sizes(mpp_csv, found)
    with reading_elsewhere() as desk:
        cost = estimate(found, slides.extract_spec(wanted, spec), mpps=sizes, desk=desk)
    typer.echo(f"{cost.slides} slides, {cost.sampled} of them looked at")
    levels = ", ".join(f"level {k}: {count:,}" for k, count in enumerate(cost.tiles))
    typer.echo(f"tiles: {levels}")
    took = terminal.duration(cost.seconds)
    typer.echo(f"bags: {terminal.size(cost.bytes)}; time with one process here: {took}")
    for path, reason in cost.unusable:
        typer.secho(f"will not give a bag: {terminal.blamed(str(path), reason)}", err=True, fg=typer.colors.YELLOW)
    if len(cost.unusable) == cost.sampled:
        raise typer.Exit(1)
