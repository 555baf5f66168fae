"""`marble tile`: tissue and lattice of slides, without embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths, terminal
from marble.cli.slide_options import (
    Coverage,
    Magnifications,
    Mpp,
    MppCsv,
    Outlines,
    Set,
    Sources,
    SpecFile,
    TilePx,
    Upsample,
    extract_spec,
    settings,
)


def tile(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Folder for previews and tissue outlines.")],
    magnifications: Magnifications = None,
    mpp: Mpp = None,
    tile_px: TilePx = None,
    coverage: Coverage = None,
    spec: SpecFile = None,
    pairs: Set = None,
    allow_upsample: Upsample = None,
    mpp_csv: MppCsv = None,
    outlines: Outlines = None,
) -> None:
    """Find tissue and lay the lattice, without embedding: a picture and a GeoJSON file per slide."""
    paths.sources(sources)
    paths.output_folder(out)
    if mpp_csv is not None:
        paths.existing_file(mpp_csv, "table")
    if outlines is not None:
        paths.existing_folder(outlines, "folder of outlines")
    wanted = settings(
        spec,
        pairs,
        magnifications=magnifications,
        mpp=mpp,
        tile_px=tile_px,
        coverage=coverage,
        allow_upsample=allow_upsample,
    )

    from marble.compute import describe
    from marble.errors import InputError
    from marble.extract import find_slides
    from marble.extract.preview import write_preview
    from marble.slides.mpp import mpp_of, read_mpp_csv

    chosen = extract_spec(wanted, spec)
    found = find_slides(sources)
    if not found:
        raise InputError("no slides to tile", where=sources[0], hint="Give slide files, or folders that hold some")
    sizes = {} if mpp_csv is None else read_mpp_csv(mpp_csv)
    failed, rows = [], []
    with terminal.progress("tiling", len(found)) as bar:
        for path in found:
            try:
                result = write_preview(
                    path, chosen.pyramid, out, tissue_spec=chosen.tissue, mpp=mpp_of(path, sizes), outlines=outlines
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
