"""`marble report`: tables, figures and a page from stored predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marble.cli import paths

if TYPE_CHECKING:
    from marble.bags.provenance import Provenance
    from marble.reports.collect import Results
    from marble.reports.page import CaseLooks, CasePicture

PICTURE_PX = 480


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of finished runs.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and index.html.")] = Path("report"),
    reference: Annotated[
        str | None, typer.Option(help="Model that all others are tested against; by default MARBLE.")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option("--unit", "--time-unit", help="Unit of the number predicted or of survival times, as months."),
    ] = None,
    slides: Annotated[Path | None, typer.Option(help="Folder with the slide files, for pictures of cases.")] = None,
    store: Annotated[Path | None, typer.Option(help="Store with the runs' bags, for heatmaps of cases.")] = None,
    viewer: Annotated[str, typer.Option(help="Address of `marble view`, for links.")] = "http://127.0.0.1:8765",
) -> None:
    """Tables, figures and a page from the stored predictions alone; pictures of cases with --slides, --store."""
    paths.existing_folder(runs, "folder of runs")
    for folder, what in ((slides, "folder of slides"), (store, "store of bags")):
        if folder is not None:
            paths.existing_folder(folder, what)
    paths.output_folder(out)
    from dataclasses import replace

    from marble.reports.collect import collect
    from marble.reports.page import CaseLooks

    results = collect(runs, reference)
    if unit is not None:  # otherwise the experiment's own
        results = replace(results, unit=unit)
    pictures = {} if slides is None and store is None else case_pictures(results, slides, store)
    write_and_show(runs, out, results, CaseLooks(pictures, viewer))


def write_and_show(runs: Path, out: Path, results: Results | None = None, looks: CaseLooks | None = None) -> None:
    """Write the report and print its table, as wide as the terminal is."""
    from contextlib import suppress

    from marble.cli import terminal
    from marble.cli.live import say
    from marble.reports.collect import collect
    from marble.reports.compare import compare
    from marble.reports.page import write_comparison
    from marble.reports.tables import caption, table_rows

    comparison = compare(results or collect(runs))
    page = write_comparison(comparison, out, looks)
    with suppress(OSError, ValueError, SystemExit):  # nobody is there to read it any more, but the report is written
        terminal.results(*_tested_first(*table_rows(comparison)))
        say(caption(comparison))
    say(f"report: {page}")


def _tested_first(header: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Every p behind the metric it is of: where columns have no room, the comparison outlives the lesser metrics."""
    order = []
    for index, name in enumerate(header):
        if not name.startswith("p ("):
            order += [index, *(at for at, other in enumerate(header) if other == f"p ({name})")]
    return [header[at] for at in order], [[row[at] for at in order] for row in rows]


def case_pictures(results: Results, slides: Path | None, store: Path | None) -> dict[tuple[str, str], CasePicture]:
    """What the page shows of its cases: a heatmap where there is a bag, otherwise the slide; a failure leaves none.

    The report itself never opens a model, so the pictures are made here and handed to it.
    """
    from functools import cache

    from marble.bags.store import BagStore
    from marble.errors import MarbleError
    from marble.extract.source import find_slides, name_clashes
    from marble.heatmaps.overlay import png_bytes
    from marble.heatmaps.write import small_heatmap
    from marble.identifiers import slide_id_of
    from marble.prediction import Predictor
    from marble.reports.cases import SHOWN, errors, extremes
    from marble.reports.page import CasePicture
    from marble.slides.readers.elsewhere import reading_elsewhere
    from marble.slides.slide import Slide

    found = [] if slides is None else find_slides([slides])
    clashes = name_clashes(found)  # one would be shown for the other
    files = {slide_id_of(path): path for path in found if path not in clashes}
    for path, reason in clashes.items():
        typer.echo(f"no picture of {path}: {reason}", err=True)
    bags = None if store is None else BagStore.find(store, like=_way_of_making_bags(results))
    opened_run = cache(Predictor)  # errors and extremes are of a few runs, and of each there are many cases
    made = {}
    with reading_elsewhere() as desk:
        for case in [*errors(results)[:SHOWN], *extremes(results)]:
            slide_id = case.slide_ids[0]
            file = files.get(slide_id)
            if (case.job, slide_id) in made:  # an error may also be one of the extremes
                continue
            try:
                if bags is not None and slide_id in bags:
                    drawn = small_heatmap(opened_run(case.folder), bags.load(slide_id), file, PICTURE_PX, desk=desk)
                    made[case.job, slide_id] = CasePicture(drawn, is_map=True)
                elif file is not None:
                    with Slide.open(file, desk=desk) as opened:
                        made[case.job, slide_id] = CasePicture(png_bytes(opened.thumbnail(PICTURE_PX)), is_map=False)
            except MarbleError as error:
                typer.echo(f"no picture of {slide_id}: {error.what}", err=True)
    return made


def _way_of_making_bags(results: Results) -> Provenance:
    from marble.training.run_folder import RunFolder

    first = results.models[0].repeats[0]
    return RunFolder(first.folder, first.record).provenance
