"""`marble tile`: tissue and lattice of slides, without embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli import paths, terminal
from marble.cli import slide_options as slides
from marble.cli.pseudonym_options import Pseudonyms, one_kind_of_ids, unnamed_sources, written
from marble.errors import InputError

NOTABLE = 0.01  # share of the tissue at the edge that is worth a word


def tile(
    sources: slides.Sources,
    out: Annotated[Path, typer.Option(help="Folder for previews and tissue outlines.")],
    magnifications: slides.Magnifications = None,
    mpp: slides.Mpp = None,
    tile_px: slides.TilePx = None,
    coverage: slides.Coverage = None,
    min_sharpness: slides.MinSharpness = None,
    max_fold: slides.MaxFold = None,
    max_pen: slides.MaxPen = None,
    max_edge: slides.MaxEdge = None,
    spec: slides.SpecFile = None,
    pairs: slides.Set = None,
    allow_upsample: slides.Upsample = None,
    mpp_csv: slides.MppCsv = None,
    outlines: slides.Outlines = None,
    id_from: slides.IdsFrom = "stem",
    pseudonyms: Pseudonyms = None,
) -> None:
    """Find tissue and lay the lattice, without embedding: a picture and a GeoJSON file per slide."""
    private = pseudonyms is not None
    with unnamed_sources(private):
        paths.sources(sources)
    written(pseudonyms)
    one_kind_of_ids(pseudonyms, id_from)
    paths.output_folder(out)
    _existing(mpp_csv, outlines)
    lattice = slides.LatticeFlags(magnifications, mpp, tile_px, coverage, allow_upsample)
    quality = slides.QualityFlags(min_sharpness, max_fold, max_pen, max_edge)
    wanted = slides.settings(spec, pairs, lattice, quality=quality)

    from marble.compute import describe
    from marble.extract import ids_of, slides_in
    from marble.extract.preview import write_preview
    from marble.extract.source import drawn_for, name_clashes
    from marble.identifiers import printable
    from marble.pseudonyms import nameless, pseudonyms_for
    from marble.slides.mpp import mpp_of
    from marble.slides.readers.elsewhere import reading_elsewhere

    chosen = slides.extract_spec(wanted, spec)
    with unnamed_sources(private):
        found = slides_in(sources)
    sizes = slides.pixel_sizes(mpp_csv, found, private=private)
    ids = ids_of(found, sources, id_from) if pseudonyms is None else pseudonyms_for(pseudonyms, found)
    clashes = name_clashes(found, ids)  # one picture would take the place of the other
    if private:
        found.sort(key=ids.__getitem__)  # the order of the files' names tells something of them
    failed: list[tuple[str, str]] = []
    rows: list[list[Any]] = []
    cut_off: list[tuple[str, float]] = []
    with reading_elsewhere() as desk, terminal.progress("tiling", len(found)) as bar:
        for path in found:
            called = path.name if id_from == "stem" and not private else ids[path]
            try:
                if path in clashes:
                    raise InputError(clashes[path], where=path)
                result = write_preview(
                    path,
                    chosen.pyramid,
                    out,
                    tissue_spec=chosen.tissue,
                    quality=chosen.quality,
                    mpp=mpp_of(path, sizes),
                    outlines=drawn_for(outlines, path, ids[path], private=private),
                    slide_id=ids[path],
                    desk=desk,
                )
            except Exception as error:  # the other slides are still tiled
                reason = nameless(describe(error), path, ids[path]) if private else describe(error)
                failed.append((printable(ids[path] if private else path), printable(reason)))
                bar(f"{printable(called)}: failed")
            else:
                name = printable(called)
                shares = f"{result.tissue:.1%}", f"{result.in_tiles:.1%}"
                rows.append([name, *shares, result.left_out, *result.tiles, printable(result.picture)])
                bar(name)
                if result.beyond >= NOTABLE and chosen.pyramid.edge == "drop":
                    cut_off.append((name, result.beyond))
    _show(rows, cut_off, chosen.pyramid.depth)
    terminal.failures(failed)


def _existing(mpp_csv: Path | None, outlines: Path | None) -> None:
    if mpp_csv is not None:
        paths.existing_file(mpp_csv, "table")
    if outlines is not None:
        paths.existing_folder(outlines, "folder of outlines")


def _show(rows: list[list[Any]], cut_off: list[tuple[str, float]], depth: int) -> None:
    """What was found on each slide, and which of them lose tissue at their edge."""
    if rows:
        levels = [f"level {k}" for k in range(depth)]
        terminal.table("tiles", ["slide", "tissue", "of it in tiles", "left out", *levels, "preview"], rows)
    for name, share in cut_off:
        text = f"caution: {name}: {share:.1%} of its tissue lies beyond the last whole tile"
        typer.secho(f"{text}; keep it with --set pyramid.edge=pad", err=True, fg=typer.colors.YELLOW)
