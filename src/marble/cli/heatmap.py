"""`marble heatmap`: draw why a run says what it says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marble.cli import paths
from marble.cli.companions import goes_without
from marble.cli.pseudonym_options import Pseudonyms, read
from marble.cli.run_options import Device, FinishedRun
from marble.cli.slide_options import (
    RunSpecFile,
    SlideMpp,
    SlideOutlines,
    Weights,
    heard_by_slides,
    preparing_flags,
    weight_files,
)
from marble.identifiers import slide_id_of

if TYPE_CHECKING:
    from marble.bags.bag import Bag
    from marble.preparing import SlideOptions
    from marble.training.run_folder import RunFolder


def heatmap(
    run_folder: FinishedRun,
    slide: Annotated[Path, typer.Argument(help="Slide file; or the id of a slide whose bag is in --store.")],
    out: Annotated[Path, typer.Option(help="Folder for pictures and GeoJSON.")] = Path("heatmaps"),
    store: Annotated[Path | None, typer.Option(help="Take the bag from this store instead of extracting it.")] = None,
    mode: Annotated[str, typer.Option(help="attention, occlusion or gradient.")] = "attention",
    target: Annotated[str | None, typer.Option(help="Class to explain; the predicted one by default.")] = None,
    level: Annotated[int | None, typer.Option(help="Only this level; 0 is the coarsest.", min=0)] = None,
    size: Annotated[int, typer.Option(help="Longest side of the slide in the picture.", min=64, max=8192)] = 1600,
    top: Annotated[int, typer.Option(help="Tiles on the contact sheet, of each kind; 0: no sheet.", min=0)] = 8,
    colours: Annotated[str | None, typer.Option(help="viridis, inferno, cividis, turbo, RdBu_r, PuOr_r.")] = None,
    stretch: Annotated[bool, typer.Option(help="Colours from the smallest value instead of 0.")] = False,
    curves: Annotated[bool, typer.Option(help="Also measure how faithful the map is.")] = False,
    weights: Weights = None,
    device: Device = "auto",
    mpp: SlideMpp = None,
    outlines: SlideOutlines = None,
    spec_file: RunSpecFile = None,
    pseudonyms: Pseudonyms = None,
) -> None:
    """Draw why a run says what it says about a slide: overlay, contact sheet, GeoJSON for QuPath."""
    if store is not None:  # the bag is there already
        goes_without("--store", preparing_flags(weights, mpp, outlines, spec_file))
    paths.run_folder(run_folder)
    paths.output_folder(out)
    if store is not None:
        paths.existing_folder(store, "store of bags")
    elif pseudonyms is None:
        paths.existing(slide, "slide or bag", "Give a slide file, or a slide's id with --store of its bag")
    read(pseudonyms)
    from marble.errors import MarbleError
    from marble.heatmaps.write import HeatmapSpec, write_heatmaps
    from marble.prediction import Predictor
    from marble.preparing import SlideOptions
    from marble.pseudonyms import nameless_error
    from marble.slides.readers.elsewhere import reading_elsewhere

    if store is None:
        heard_by_slides([slide], preparing_flags(weights, mpp, outlines, spec_file))
    predictor = Predictor(run_folder, device=device)
    options = SlideOptions(device, weight_files(weights), mpp, outlines, spec_file, pseudonyms)
    spec = HeatmapSpec(mode, target, level, size, top, colours, stretch, curves)
    file: Path | None = slide if slide.is_file() and slide.suffix != ".safetensors" else None
    slide_id = None
    if pseudonyms is not None:
        slide_id, file = _known(slide, file, pseudonyms, stored=store is not None)
    try:
        bag = _bag(slide if slide_id is None or file is None else file, slide_id, store, predictor.run, options)
        with reading_elsewhere() as desk:  # a decoder that crashes or hangs ends in one line
            done = write_heatmaps(predictor, bag, file, out, spec, desk=desk)
    except MarbleError as error:
        if slide_id is None or file is None:
            raise
        raise nameless_error(error, file, slide_id) from None
    typer.echo(done.sentence)
    cautions = [f"{bag.slide_id}: {warning}" for warning in done.warnings]
    if slide_id is None and not slide.exists() and str(slide) != bag.slide_id:  # a path, and not just an id
        cautions.append(f"{slide}: no such file, so the lattice of {bag.slide_id} is drawn without the slide")
    for caution in cautions:
        typer.secho(f"caution: {caution}", err=True, fg=typer.colors.YELLOW)
    for path in done.files:
        typer.echo(f"wrote {path}")


def _known(slide: Path, file: Path | None, table: Path, *, stored: bool) -> tuple[str, Path | None]:
    """The pseudonym and the file of a slide that was called by either; without pixels if only its bag is known."""
    from marble.errors import InputError
    from marble.pseudonyms import Pseudonyms, pseudonyms_for

    if file is not None:
        return pseudonyms_for(table, [file])[file], file
    found = Pseudonyms.read(table).files().get(str(slide))
    if found is None and not stored:
        hint = "Give a slide file, an id whose file is where the table says, or --store with its bag"
        raise InputError("no slide file is known by this name", where=table, hint=hint)
    return str(slide), found


def _bag(slide: Path, slide_id: str | None, store: Path | None, run: RunFolder, options: SlideOptions) -> Bag:
    """The bag of the prediction: from the store if one is given, otherwise made from the slide."""
    from marble.bags.store import BagStore
    from marble.compute import Processes
    from marble.extract import SLIDE_LIMITS
    from marble.preparing import bags_of

    if store is not None:
        found = BagStore.find(store, like=run.provenance)
        return found.load(slide_id or (str(slide) if str(slide) in found else slide_id_of(slide)))
    _, bag = next(iter(bags_of([slide], run, options, executor=Processes(1, limits=SLIDE_LIMITS))))
    if isinstance(bag, Exception):
        raise bag
    return bag
