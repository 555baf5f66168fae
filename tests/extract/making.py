"""Settings and oracles shared by the extraction tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marble.encoders import Encoder
from marble.extract import ExtractSpec
from marble.files import sha256_file
from marble.slides.lattice import Pyramid, PyramidSpec, lay
from marble.slides.slide import Box, Slide
from marble.slides.tissue import segment


def spec_of(*magnifications: float, tile_px: int = 64, **fields: Any) -> ExtractSpec:
    """Small tiles and the colour encoder: fast, and every number can be computed by hand."""
    pyramid = fields.pop("pyramid", {})
    levels = PyramidSpec(magnifications=magnifications or (5.0, 20.0), tile_px=tile_px, **pyramid)
    return ExtractSpec(pyramid=levels, **{"encoders": ("colour",), **fields})


def lattice(slide: Slide, spec: ExtractSpec) -> Pyramid:
    return lay(slide.l0_size_px, slide.mpp, segment(slide, spec.tissue), spec.pyramid)


def tile_by_tile(slide: Slide, pyramid: Pyramid, level: int, encoder: Encoder) -> NDArray[np.float32]:
    """(T, D) the slow way: one read and one batch for each tile."""
    side = pyramid.tile_px
    rows = []
    for box in pyramid.boxes(level).tolist():
        pixels = slide.read(Box(*box), (side, side)).pixels
        rows.append(encoder.encode(encoder.fit(pixels)[None])[0])
    return np.stack(rows)


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its hash."""
    return {str(p.relative_to(folder)): sha256_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}
