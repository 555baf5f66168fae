"""Tissue: a low-resolution mask of a slide, and what fraction of any box it covers.

`segment` reads the slide once at about 8 um per pixel. Tissue is what has colour: chroma (the largest minus the
smallest of R, G, B) above Otsu's threshold. Chroma instead of HSV saturation, because saturation divides by brightness
and turns the noise of black coverslip edges into tissue. The threshold is held between two limits, so that a blank
slide gives an empty mask instead of half its noise, and a dark tumour does not push pale stroma below the line.

Decisions. Ink: saturated blue and green, or black, in areas larger than pigment; if most of what has colour looks like
ink, the stain itself is blue and nothing is rejected for its colour. Focus: mean absolute Laplacian in a window; only
gross blur shows at this resolution. Missing pixels are tissue where most of their rim is, so that the tiles there are
laid, read, and counted as missing instead of passing for background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import Field

from marble import files
from marble.errors import MarbleError, SlideError
from marble.slides import outlines
from marble.slides.readers.planes import Mask, Pixels
from marble.slides.slide import Box, Slide
from marble.specs import Spec

Floats = npt.NDArray[np.float64]
_MEDIAN_PX = 5
_INK_HUES = (35, 122)  # of OpenCV's 180: green to blue; haematoxylin starts near 128
_INK_CHROMA = 48
_BLACK_BRIGHTNESS, _BLACK_CHROMA = 80, 24


class TissueSpec(Spec):
    """How tissue is found; lengths in micrometres, so that they mean the same on every scanner."""

    working_mpp: float = Field(default=8.0, gt=0, le=64, description="resolution of the mask, um per pixel")
    min_chroma: float = Field(default=8.0, ge=0, le=255, description="lower limit of Otsu's threshold")
    max_chroma: float = Field(default=16.0, ge=0, le=255, description="upper limit of Otsu's threshold")
    close_um: float = Field(default=24.0, ge=0, description="radius of the closing that joins neighbouring cells")
    min_island_um2: float = Field(default=30_000.0, ge=0, description="smaller pieces are dropped")
    min_hole_um2: float = Field(default=60_000.0, ge=0, description="smaller holes are filled")
    pen_marks: bool = Field(default=True, description="reject ink")
    min_ink_um2: float = Field(default=20_000.0, ge=0, description="smaller dark spots are pigment, not ink")
    ink_margin_um: float = Field(default=40.0, ge=0, description="rejected around ink, where it mixes with white")
    min_sharpness: float = Field(default=2.5, ge=0, description="out of focus below this; 0 turns the check off")
    sharpness_window_um: float = Field(default=120.0, gt=0)


@dataclass(frozen=True, eq=False)
class Tissue:
    """Where the tissue is.

    Args:
        mask: (h, w); its pixel (0, 0) starts at level-0 pixel (0, 0).
        l0_per_px: side of a mask pixel in level-0 pixels.
        measures: what was seen on the way: threshold, fractions of the picture taken as ink, blurred, missing.
    """

    mask: Mask
    l0_per_px: float
    measures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        summed = np.pad(np.cumsum(np.cumsum(self.mask, axis=0, dtype=np.float64), axis=1), ((1, 0), (1, 0)))
        object.__setattr__(self, "_summed", summed)  # (h+1, w+1): tissue above and left of each corner

    @property
    def fraction(self) -> float:
        """Share of the mask that is tissue."""
        return float(self.mask.mean()) if self.mask.size else 0.0

    def coverage(self, l0_boxes: npt.ArrayLike) -> Floats:
        """(n,) tissue fraction of boxes (n, 4): x, y, width, height in level-0 pixels.

        Exact, also for boxes that cut mask pixels. Outside the mask is no tissue.
        """
        boxes = np.asarray(l0_boxes, np.float64).reshape(-1, 4) / self.l0_per_px
        left, top = boxes[:, 0], boxes[:, 1]
        right, bottom = left + boxes[:, 2], top + boxes[:, 3]
        inside = (
            self._corner(bottom, right)
            - self._corner(top, right)
            - self._corner(bottom, left)
            + self._corner(top, left)
        )
        return np.clip(inside / (boxes[:, 2] * boxes[:, 3]), 0.0, 1.0)

    def to_geojson(self) -> dict[str, Any]:
        """The outlines in level-0 pixels, for QuPath."""
        return outlines.to_geojson(outlines.trace(self.mask), self.l0_per_px)

    @classmethod
    def from_geojson(
        cls, source: str | Path | dict[str, Any] | list[Any], l0_size: tuple[int, int], l0_per_px: float
    ) -> Tissue:
        """A mask from outlines drawn or edited elsewhere; they replace what `segment` would find."""
        where: object = "GeoJSON"
        document: Any = source
        if isinstance(source, str | Path):
            where = source
            try:
                document = files.read_json(source)
            except MarbleError as error:
                raise SlideError(error.what, where=source, hint="Export the outlines again") from None
        polygons = outlines.from_geojson(document, l0_per_px, where)
        width, height = (int(np.ceil(side / l0_per_px)) for side in l0_size)
        return cls(outlines.fill(polygons, (height, width)), l0_per_px, {"outlines": float(len(polygons))})

    def _corner(self, y: Floats, x: Floats) -> Floats:
        """Tissue above and left of (y, x). Within one pixel this is bilinear in y and x, so interpolation is exact."""
        summed: Floats = self._summed  # type: ignore[attr-defined]
        height, width = self.mask.shape
        y, x = np.clip(y, 0, height), np.clip(x, 0, width)
        row, column = np.minimum(y.astype(np.int64), height - 1), np.minimum(x.astype(np.int64), width - 1)
        down, right = y - row, x - column
        upper = summed[row, column] * (1 - right) + summed[row, column + 1] * right
        lower = summed[row + 1, column] * (1 - right) + summed[row + 1, column + 1] * right
        return np.asarray(upper * (1 - down) + lower * down, np.float64)


def tissue_for(slide: Slide, spec: TissueSpec, drawn: Path | None = None) -> Tissue:
    """The tissue of a slide: found, or as outlines say that were drawn elsewhere."""
    if drawn is None:
        return segment(slide, spec)
    return Tissue.from_geojson(drawn, slide.l0_size_px, _l0_per_px(slide, spec))


def segment(slide: Slide, spec: TissueSpec | None = None) -> Tissue:
    """Find the tissue of a slide. The same slide and settings give the same mask, always."""
    spec = spec or TissueSpec()
    l0_per_px = _l0_per_px(slide, spec)
    width, height = (-(-side // l0_per_px) for side in slide.l0_size_px)
    overview = slide.read(Box(0, 0, width * l0_per_px, height * l0_per_px), (width, height))
    um_per_px = l0_per_px * slide.mpp
    smooth = cv2.medianBlur(overview.pixels, _MEDIAN_PX).astype(np.uint8, copy=False)
    chroma = smooth.max(axis=2) - smooth.min(axis=2)
    threshold = _threshold(chroma, spec)
    coloured = chroma > threshold
    measures = {"threshold": threshold, "ink": 0.0, "blurred": 0.0, "missing": 0.0}
    mask = coloured.copy()
    if spec.pen_marks:
        ink = _ink(smooth, chroma, coloured, spec, um_per_px)
        mask &= ~ink
        measures["ink"] = float(ink.mean())
    if spec.min_sharpness > 0:
        blurred = mask & (_sharpness(overview.pixels, spec, um_per_px) < spec.min_sharpness)
        mask &= ~blurred
        measures["blurred"] = float(blurred.mean())
    mask = _tidy(mask, spec, um_per_px)
    if overview.missing is not None:
        mask |= _enclosed_by(mask, overview.missing)
        measures["missing"] = float(overview.missing.mean())
    return Tissue(mask, float(l0_per_px), measures)


def _l0_per_px(slide: Slide, spec: TissueSpec) -> int:
    """A whole number of level-0 pixels per mask pixel: no drift between mask and slide."""
    return max(1, round(spec.working_mpp / slide.mpp))


def _threshold(chroma: npt.NDArray[np.uint8], spec: TissueSpec) -> float:
    otsu, _ = cv2.threshold(chroma, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    return float(np.clip(otsu, spec.min_chroma, max(spec.min_chroma, spec.max_chroma)))


def _ink(smooth: Pixels, chroma: npt.NDArray[np.uint8], coloured: Mask, spec: TissueSpec, um_per_px: float) -> Mask:
    hue = cv2.cvtColor(smooth, cv2.COLOR_RGB2HSV)[..., 0]
    bright = (chroma >= _INK_CHROMA) & (hue >= _INK_HUES[0]) & (hue <= _INK_HUES[1])
    if 2 * np.count_nonzero(bright) > np.count_nonzero(coloured):
        bright = np.zeros_like(bright)
    black = (smooth.max(axis=2) < _BLACK_BRIGHTNESS) & (chroma < _BLACK_CHROMA)
    ink = _without_small(bright | black, spec.min_ink_um2 / um_per_px**2)
    return cv2.dilate(ink.astype(np.uint8), _disk(spec.ink_margin_um / um_per_px)) > 0


def _sharpness(pixels: Pixels, spec: TissueSpec, um_per_px: float) -> npt.NDArray[np.float32]:
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.float32)
    window = max(3, round(spec.sharpness_window_um / um_per_px))
    return np.asarray(cv2.blur(np.abs(cv2.Laplacian(grey, cv2.CV_32F)), (window, window)), np.float32)


def _tidy(mask: Mask, spec: TissueSpec, um_per_px: float) -> Mask:
    """Join neighbouring cells, drop small pieces, fill small holes."""
    radius = spec.close_um / um_per_px
    edge = int(np.ceil(radius)) + 1
    padded = np.pad(mask.astype(np.uint8), edge)  # closing must not stick to the picture's edge
    closed = cv2.morphologyEx(padded, cv2.MORPH_CLOSE, _disk(radius))[edge:-edge, edge:-edge] > 0
    kept = _without_small(closed, spec.min_island_um2 / um_per_px**2)
    return ~_without_small(~kept, spec.min_hole_um2 / um_per_px**2)


def _without_small(mask: Mask, min_px: float) -> Mask:
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    keep = stats[:, cv2.CC_STAT_AREA] >= min_px
    keep[0] = False
    return np.asarray(keep[labels])


def _enclosed_by(tissue: Mask, missing: Mask) -> Mask:
    """The connected pieces of `missing` of whose rim at least half is tissue."""
    count, labels = cv2.connectedComponents(missing.astype(np.uint8), connectivity=8)
    grown = cv2.dilate(labels.astype(np.float32), np.ones((3, 3), np.uint8)).astype(np.int64)
    rim = grown[~missing]
    total = np.bincount(rim, minlength=count)
    of_tissue = np.bincount(rim[tissue[~missing]], minlength=count)
    enclosed = 2 * of_tissue >= np.maximum(total, 1)
    enclosed[0] = False
    return np.asarray(enclosed[labels])


def _disk(radius_px: float) -> npt.NDArray[np.uint8]:
    side = 2 * round(radius_px) + 1
    return np.asarray(cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side)), np.uint8)
