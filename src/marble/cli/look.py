"""`heatmap`, `view`: see why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from marble.bags.bag import Bag
    from marble.training.run import Run


def register(app: typer.Typer) -> None:
    for verb in (heatmap, view):
        app.command()(verb)


def heatmap(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one finished run.")],
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
) -> None:
    """Draw why a run says what it says about a slide: overlay, contact sheet, GeoJSON for QuPath."""
    from marble.prediction import Predictor
    from marble.viewer.heatmaps import HeatmapWish, write_heatmaps

    predictor = Predictor(run_folder)
    bag = _bag(slide, store, predictor.run)
    file = slide if slide.is_file() and slide.suffix != ".safetensors" else None
    wish = HeatmapWish(mode, target, level, size, top, colours, stretch, curves)
    done = write_heatmaps(predictor, bag, file, out, wish)
    typer.echo(done.sentence)
    for path in done.files:
        typer.echo(f"wrote {path}")


def view(
    source: Annotated[Path, typer.Argument(metavar="RUNS_OR_STORE", help="Folder of runs, a store, or one with both.")],
    slides: Annotated[Path | None, typer.Option(help="Folder with the slide files.")] = None,
    store: Annotated[Path | None, typer.Option(help="Store with the runs' bags, if it is elsewhere.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="MARBLE_VIEW_TOKEN", help="Ask every request for this secret.")
    ] = None,
) -> None:
    """Look at slides, attention and results in the browser; nothing leaves this machine."""
    from marble.viewer.serve import serve

    serve(source, slides=slides, store=store, host=host, port=port, token=token, tell=typer.echo)


def _bag(slide: Path, store: Path | None, run: Run) -> Bag:
    """The bag of the prediction: from the store if one is given, otherwise made from the slide."""
    from marble.experiment.stores import find_store
    from marble.prediction import bags_of

    if store is not None:
        found = find_store(store)
        return found.load(str(slide) if str(slide) in found else slide.stem)
    _, bag = next(iter(bags_of([slide], run)))
    if isinstance(bag, Exception):
        raise bag
    return bag
