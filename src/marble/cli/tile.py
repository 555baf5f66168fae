"""`marble tile`: tissue and lattice of slides, without embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths, terminal
from marble.cli.slide_options import (
    Coverage,
    Magnifications,
    MaxEdge,
    MaxFold,
    MaxPen,
    MinSharpness,
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

NOTABLE = 0.01  # share of the tissue at the edge that is worth a word


def tile(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Folder for previews and tissue outlines.")],
    magnifications: Magnifications = None,
    mpp: Mpp = None,
    tile_px: TilePx = None,
    coverage: Coverage = None,
    min_sharpness: MinSharpness = None,
    max_fold: MaxFold = None,
    max_pen: MaxPen = None,
    max_edge: MaxEdge = None,
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
        min_sharpness=min_sharpness,
        max_fold=max_fold,
        max_pen=max_pen,
        max_edge=max_edge,
        allow_upsample=allow_upsample,
    )

    from marble.compute import describe
    from marble.errors import InputError
    from marble.extract import find_slides
    from marble.extract.preview import write_preview
    from marble.identifiers import printable
    from marble.slides.mpp import mpp_of, read_mpp_csv

    chosen = extract_spec(wanted, spec)
    found = find_slides(sources)
    if not found:
        raise InputError("no slides to tile", where=sources[0], hint="Give slide files, or folders that hold some")
    sizes = {} if mpp_csv is None else read_mpp_csv(mpp_csv)
    failed, rows, cut_off = [], [], []
    with terminal.progress("tiling", len(found)) as bar:
        for path in found:
            try:
                result = write_preview(
                    path,
                    chosen.pyramid,
                    out,
                    tissue_spec=chosen.tissue,
                    quality=chosen.quality,
                    mpp=mpp_of(path, sizes),
                    outlines=outlines,
                )
            except Exception as error:  # the other slides are still tiled
                failed.append((printable(path), printable(describe(error))))
                bar(f"{printable(path.name)}: failed")
            else:
                name = printable(path.name)
                in_tiles = f"{result.in_tiles:.1%}"
                rows.append([name, result.tissue, in_tiles, result.left_out, *result.tiles, printable(result.picture)])
                bar(name)
                if result.beyond >= NOTABLE and chosen.pyramid.edge == "drop":
                    cut_off.append((name, result.beyond))
    if rows:
        levels = [f"level {k}" for k in range(chosen.pyramid.depth)]
        terminal.table("tiles", ["slide", "tissue", "of it in tiles", "left out", *levels, "preview"], rows)
    for name, share in cut_off:
        text = f"caution: {name}: {share:.1%} of its tissue lies beyond the last whole tile"
        typer.secho(f"{text}; keep it with --set pyramid.edge=pad", err=True, fg=typer.colors.YELLOW)
    terminal.failures(failed)
