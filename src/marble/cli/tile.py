"""`marble tile`: tissue and lattice of slides, without embedding."""

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
    pixel_sizes,
    pyramid_spec,
)


def tile(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Folder for previews and tissue outlines.")],
    magnifications: Magnifications = None,
    mpp: Mpp = None,
    tile_px: TilePx = 256,
    allow_upsample: Upsample = False,
    mpp_csv: MppCsv = None,
    outlines: Outlines = None,
) -> None:
    """Find tissue and lay the lattice, without embedding: a picture and a GeoJSON file per slide."""
    from marble.compute import describe
    from marble.extract import find_slides
    from marble.extract.preview import write_preview

    spec = pyramid_spec(magnifications, mpp, tile_px, allow_upsample)
    found = find_slides(sources)
    sizes = pixel_sizes(mpp_csv)
    failed, rows = [], []
    with terminal.progress("tiling", len(found)) as bar:
        for path in found:
            try:
                result = write_preview(
                    path, spec, out, mpp=sizes.get(path.name, sizes.get(path.stem)), outlines=outlines
                )
            except Exception as error:  # the other slides are still tiled
                failed.append((str(path), describe(error)))
                bar(f"{path.name}: failed")
            else:
                rows.append([path.name, result.tissue, *result.tiles, str(result.picture)])
                bar(path.name)
    if rows:
        levels = [f"level {k}" for k in range(len(rows[0]) - 3)]
        terminal.table("tiles", ["slide", "tissue", *levels, "preview"], rows)
    terminal.failures(failed)
