"""Tissue and lattice without embedding: a picture and a GeoJSON file per slide, to look at before hours are spent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import cv2

from marble import files
from marble.errors import SlideError
from marble.slides.lattice import PyramidSpec, lay
from marble.slides.preview import draw_preview
from marble.slides.slide import Slide
from marble.slides.tissue import Tissue, TissueSpec, segment


@dataclass(frozen=True)
class Preview:
    """What was found on one slide, and where its picture is."""

    tissue: float  # fraction of the slide
    tiles: tuple[int, ...]  # of each level
    picture: Path


def write_preview(
    path: str | Path,
    spec: PyramidSpec,
    out: str | Path,
    *,
    tissue_spec: TissueSpec | None = None,
    mpp: float | None = None,
    outlines: str | Path | None = None,
    max_px: int = 1600,
) -> Preview:
    """Write `out/<slide>.png` and `out/<slide>.geojson`; the outlines can be edited in QuPath and given back."""
    tissue_spec = tissue_spec or TissueSpec()
    with Slide.open(path, mpp=mpp) as slide:
        drawn = None if outlines is None else Path(outlines) / f"{slide.name}.geojson"
        if drawn is not None and drawn.exists():
            tissue = Tissue.from_geojson(drawn, slide.l0_size_px, max(1, round(tissue_spec.working_mpp / slide.mpp)))
        else:
            tissue = segment(slide, tissue_spec)
        pyramid = lay(slide.l0_size_px, slide.mpp, tissue, spec, name=Path(path).name)
        picture = draw_preview(slide, tissue, pyramid, max_px)
        good, png = cv2.imencode(".png", picture[:, :, ::-1])
        if not good:
            raise SlideError("the preview could not be written as PNG", where=path)
        target = files.publish(Path(out) / f"{slide.name}.png", png.tobytes())
        files.publish(Path(out) / f"{slide.name}.geojson", json.dumps(tissue.to_geojson()))
    return Preview(tissue.fraction, tuple(len(cells) for cells in pyramid.cells), target)
