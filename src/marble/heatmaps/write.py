"""What `marble heatmap` writes: overlays, a contact sheet, GeoJSON and the numbers behind them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from marble import files
from marble.attribution import Curves, Explanation, deletion_insertion, explain, score_of
from marble.attribution.tile_map import TileMap
from marble.bags.bag import Bag
from marble.bags.record import file_stem
from marble.errors import InputError
from marble.heatmaps.faithfulness import curve_numbers, curves_png
from marble.heatmaps.geojson import write_geojson
from marble.heatmaps.overlay import Words, blank, blend, draw_heatmap, png_bytes, write_png
from marble.heatmaps.sheet import contact_sheet
from marble.prediction import Answer, Predictor
from marble.slides.readers.elsewhere import ReadingDesk
from marble.slides.slide import Box, Slide

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class HeatmapSpec:
    """What is wanted of a heatmap; the command line's options."""

    mode: str = "attention"
    target: str | None = None
    level: int | None = None
    size: int = 1600
    top: int = 8
    colours: str | None = None
    stretch: bool = False
    curves: bool = False


@dataclass(frozen=True)
class Written:
    """What was written, and the prediction in a sentence."""

    sentence: str
    files: tuple[Path, ...]
    warnings: tuple[str, ...] = ()


def write_heatmaps(
    predictor: Predictor,
    bag: Bag,
    slide_file: Path | None,
    out: Path,
    spec: HeatmapSpec | None = None,
    *,
    desk: ReadingDesk | None = None,
) -> Written:
    """Explain `bag`, draw it over the slide (or a blank of its size) and write everything into `out`.

    With a `desk`, that process reads the slide, and what its decoder does harms only that process.
    """
    spec = spec or HeatmapSpec()
    explanation = explain(predictor, bag, spec.mode, spec.target, level=spec.level or 0)
    shown = [replace(one, stretched=spec.stretch) for one in explanation.maps if spec.level in (None, one.level)]
    if not shown:
        levels = ", ".join(str(one.level) for one in explanation.maps)
        raise InputError(f"no map of level {spec.level}; this run has one of {levels}", where=predictor.run.folder)
    stem = f"{file_stem(bag.slide_id)}-{spec.mode}{_asked_for(spec.target)}"
    words = Words(bag.slide_id, (sentence(explanation.answer), _about(predictor, explanation)))
    written: list[Path] = []
    slide = None if slide_file is None else _same_slide(Slide.open(slide_file, mpp=_mpp(bag), desk=desk), bag)
    try:
        size = bag.l0_size_px
        picture = blank(size, spec.size) if slide is None else slide.thumbnail(spec.size)
        for tiles in shown:
            framed = draw_heatmap(picture, size, tiles, _at_level(words, tiles), mpp=_mpp(bag), colours=spec.colours)
            written.append(write_png(out / f"{stem}-level{tiles.level}.png", framed.pixels))
            written.append(write_geojson(out / f"{stem}-level{tiles.level}.geojson", tiles))
        if slide is not None and spec.top:
            written.append(write_png(out / f"{stem}-tiles.png", _sheet(slide, explanation, shown[-1], spec.top, words)))
    finally:
        if slide is not None:
            slide.close()
    numbers: dict[str, object] = {"prediction": explanation.answer.row(), "mode": spec.mode,
                                  "target": explanation.target, "run": predictor.run.record["job"]}  # fmt: skip
    if spec.curves:
        measured, score = _faithfulness(predictor, bag, explanation, shown[-1])
        numbers["faithfulness"] = {"score": score, "level": shown[-1].level, **curve_numbers(measured)}
        written.append(files.publish(out / f"{stem}-curves.png", curves_png(measured, score, bag.slide_id)))
    written.append(files.publish_json(out / f"{stem}.json", numbers))
    return Written(sentence(explanation.answer), tuple(written), explanation.answer.warnings)


def _asked_for(target: str | None) -> str:
    """The class in the names of files, cut to what a disk takes: maps of two classes do not replace each other."""
    safe = "" if target is None else f"-{file_stem(target)}"
    return safe if len(safe) <= 40 else f"{safe[:31]}%{files.sha256_bytes(safe.encode())[:8]}"


def sentence(answer: Answer) -> str:
    """The prediction in words, as titles and panels show it."""
    return f"{answer.sentence}, order SD {answer.prediction.order_sd:.2g}"


def _about(predictor: Predictor, explanation: Explanation) -> str:
    model = predictor.run.record["model"]["name"]
    target = "" if explanation.target is None else f" for {explanation.target}"
    return f"{model}: {explanation.maps[0].name}{target}"


def _at_level(words: Words, tiles: TileMap) -> Words:
    scale = "" if tiles.magnification is None else f" ({tiles.magnification:g}x)"
    *first, last = words.lines
    return Words(words.title, (*first, f"{last}, level {tiles.level}{scale}, {len(tiles.values):,} tiles"))


def _sheet(slide: Slide, explanation: Explanation, fine: TileMap, count: int, words: Words) -> Pixels:
    def crop(l0_box: tuple[int, int, int, int], px: int) -> Pixels:
        return slide.read(Box(*l0_box), (px, px), allow_upsample=True).pixels

    coarse = next((one for one in explanation.maps if one.level == fine.level - 1), None)
    return contact_sheet(crop, fine, coarse, f"{words.title}: {words.lines[0]}", count=count)


def _faithfulness(predictor: Predictor, bag: Bag, explanation: Explanation, tiles: TileMap) -> tuple[Curves, str]:
    """Both curves of a map, and the name of the score they are about."""
    score = score_of(predictor.task, explanation.target or explanation.answer.label, predictor.run.calibration)
    values = torch.from_numpy(tiles.values)
    return deletion_insertion(predictor.model, bag, values, score, level=tiles.level), score.name


def small_heatmap(
    predictor: Predictor, bag: Bag, slide_file: Path | None, px: int, *, desk: ReadingDesk | None = None
) -> bytes:
    """The attention of the finest level over the slide as a small PNG without a frame, for a list of cases."""
    tiles = explain(predictor, bag).maps[-1]
    size = bag.l0_size_px
    if slide_file is None:
        return png_bytes(blend(blank(size, px), size, tiles))
    slide = _same_slide(Slide.open(slide_file, mpp=_mpp(bag), desk=desk), bag)
    try:
        return png_bytes(blend(slide.thumbnail(px), size, tiles))
    finally:
        slide.close()


def _mpp(bag: Bag) -> float | None:
    slide = bag.provenance.slide
    return None if slide is None else slide.mpp


def _same_slide(slide: Slide, bag: Bag) -> Slide:
    """Refuse to draw a bag's values over another picture than it was made from."""
    known = bag.provenance.slide
    if not bag.is_placed or known is None:
        slide.close()
        raise InputError("the bag does not know where its tiles lie on the slide", where=bag.slide_id,
                         hint="Give the slide's id in place of its file to draw the lattice alone")  # fmt: skip
    if slide.l0_size_px != (known.l0_width_px, known.l0_height_px):
        found, size = slide.l0_size_px, (known.l0_width_px, known.l0_height_px)
        slide.close()
        raise InputError(f"the slide is {found} pixels, the bag was made from one of {size}", where=slide.path)
    return slide
