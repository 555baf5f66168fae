"""Tissue and lattice without embedding: a picture and a GeoJSON file per slide, to look at before hours are spent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from marble import files
from marble.errors import SlideError
from marble.extract.regions import blocks, read_block
from marble.slides.lattice import Pyramid, PyramidSpec, lay
from marble.slides.preview import draw_preview
from marble.slides.quality import QualitySpec, measure, outside
from marble.slides.readers.elsewhere import ReadingDesk
from marble.slides.slide import Slide
from marble.slides.tissue import TissueSpec, tissue_for


@dataclass(frozen=True)
class Preview:
    """What was found on one slide, and where its picture is."""

    tissue: float  # fraction of the slide
    in_tiles: float  # fraction of the tissue that lies in finest tiles
    beyond: float  # fraction of it beyond the last whole tile, at the right and lower edge
    tiles: tuple[int, ...]  # of each level
    left_out: int  # finest tiles that are not good enough to look at
    picture: Path


def write_preview(
    path: str | Path,
    spec: PyramidSpec,
    out: str | Path,
    *,
    tissue_spec: TissueSpec | None = None,
    quality: QualitySpec | None = None,
    mpp: float | None = None,
    outlines: Path | None = None,
    slide_id: str | None = None,
    desk: ReadingDesk | None = None,
) -> Preview:
    """Write `out/<slide>.png` and `out/<slide>.geojson`; the outlines can be edited in QuPath and given back.

    Tissue is taken from the file of `outlines`, if there is one.
    The slide is called by its `slide_id`, or by its file if that is not given.
    With a `desk` the slide is read in that process, and a decoder that crashes or hangs is an error like any other.
    """
    tissue_spec = tissue_spec or TissueSpec()
    with Slide.open(path, mpp=mpp, desk=desk) as slide:
        tissue = tissue_for(slide, tissue_spec, outlines)
        pyramid = lay(slide.l0_size_px, slide.mpp, tissue, spec, name=Path(path).name)
        rejected = None if quality is None or not quality.is_on else rejected_boxes(slide, pyramid, quality)
        picture = draw_preview(slide, tissue, pyramid, rejected=rejected)
        good, png = cv2.imencode(".png", picture[:, :, ::-1])
        if not good:
            raise SlideError("the preview could not be written as PNG", where=path)
        target = files.publish(Path(out) / f"{slide_id or slide.name}.png", png.tobytes())
        files.publish(Path(out) / f"{slide_id or slide.name}.geojson", json.dumps(tissue.to_geojson()))
    tiles = tuple(len(cells) for cells in pyramid.cells)
    left_out = 0 if rejected is None else len(rejected)
    return Preview(tissue.fraction, pyramid.tissue_in_tiles, pyramid.tissue_beyond, tiles, left_out, target)


def rejected_boxes(slide: Slide, pyramid: Pyramid, quality: QualitySpec) -> npt.NDArray[np.int64]:
    """(n, 4) the finest tiles that are not good enough to look at, in level-0 pixels. All are read; one that lacks
    pixels has no looks to be left out for.
    """
    finest = pyramid.depth - 1
    boxes = pyramid.boxes(finest)
    looks = np.zeros((len(boxes), 4), np.float32)
    looks[:, 3] = outside(boxes, slide.l0_size_px)
    seen = np.zeros(len(boxes), np.bool_)
    look = partial(measure, mpp=pyramid.mpps[finest])
    for block in blocks(slide, pyramid, finest):
        side = pyramid.tile_px
        cut = read_block(slide, block, side, side, lambda tile: tile, allow_upsample=pyramid.upsampled, look=look)
        looks[cut.tiles, :3] = cut.looks
        seen[cut.tiles] = True
    return np.asarray(boxes[seen & ~quality.keeps(looks)])
