"""A picture of what was found: the slide, the tissue's outline, and the tiles of every level."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from marble.slides import outlines
from marble.slides.lattice import Pyramid
from marble.slides.readers.planes import Pixels
from marble.slides.slide import Slide
from marble.slides.tissue import Tissue

# Coarsest first; told apart also by colour-blind readers.
_LEVEL_COLOURS = ((213, 94, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233))
_OUTLINE_COLOUR = (0, 0, 0)
_REJECTED_COLOUR = (200, 0, 0)
_WHITE = (255, 255, 255)
_LEGEND_ROW_PX = 30
_SHIFT = 4  # cv2 draws at 1/16 of a pixel


def draw_preview(
    slide: Slide,
    tissue: Tissue,
    pyramid: Pyramid | None,
    max_px: int = 1600,
    rejected: npt.NDArray[np.int64] | None = None,
) -> Pixels:
    """(h, w, 3): thumbnail, outlines in black, tiles of each level in its colour, and a legend below.

    `pyramid` is None for a slide on which no lattice could be laid. `rejected` are boxes (n, 4) in level-0 pixels of
    finest tiles that are not good enough to look at; they are crossed out.
    """
    picture = slide.thumbnail(max_px).copy()
    scale = picture.shape[1] / slide.l0_size_px[0]  # picture pixels in a level-0 pixel
    legend = [(_OUTLINE_COLOUR, f"tissue, {tissue.fraction:.1%} of the slide")]
    for level in reversed(range(pyramid.depth if pyramid else 0)):  # finest first, so that coarse lines stay on top
        assert pyramid is not None
        colour = _LEVEL_COLOURS[level % len(_LEVEL_COLOURS)]
        thickness = 1 if level == pyramid.depth - 1 else 2
        _draw_boxes(picture, pyramid.boxes(level) * scale, colour, thickness)
        scale_text = f"{pyramid.magnifications[level]:g}x, {pyramid.mpps[level]:.4g} um/px"
        legend.insert(0, (colour, f"level {level}: {scale_text}, {pyramid.counts[level].kept:,} tiles"))
    if rejected is not None:
        _cross_out(picture, rejected * scale)
        legend.append((_REJECTED_COLOUR, f"left out for blur, folds or ink: {len(rejected):,} tiles"))
    for rings in outlines.trace(tissue.mask):
        for ring in rings:
            points = np.rint(ring * (tissue.l0_per_px * scale * 2**_SHIFT)).astype(np.int32)
            cv2.polylines(picture, [points], True, _OUTLINE_COLOUR, 1, cv2.LINE_AA, _SHIFT)
    return np.concatenate((picture, _legend(legend, picture.shape[1])))


def _draw_boxes(picture: Pixels, boxes: npt.NDArray[np.float64], colour: tuple[int, int, int], thickness: int) -> None:
    for x, y, width, height in np.rint(boxes).astype(int).tolist():
        cv2.rectangle(picture, (x, y), (x + width, y + height), colour, thickness)


def _cross_out(picture: Pixels, boxes: npt.NDArray[np.float64]) -> None:
    for x, y, width, height in np.rint(boxes).astype(int).tolist():
        cv2.line(picture, (x, y), (x + width, y + height), _REJECTED_COLOUR, 2, cv2.LINE_AA)
        cv2.line(picture, (x + width, y), (x, y + height), _REJECTED_COLOUR, 2, cv2.LINE_AA)


def _legend(entries: list[tuple[tuple[int, int, int], str]], width: int) -> Pixels:
    strip = np.full((len(entries) * _LEGEND_ROW_PX + 8, width, 3), _WHITE[0], np.uint8)
    for row, (colour, text) in enumerate(entries):
        y = row * _LEGEND_ROW_PX + 8
        cv2.rectangle(strip, (8, y), (30, y + 18), colour, -1)
        cv2.putText(strip, text, (40, y + 16), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (40, 40, 40), 1, cv2.LINE_AA)
    return strip
