"""How good a tile is to look at: out of focus, folded, under ink, over the picture's edge.

Measured on the tile's own pixels, where blur shows that is lost at the resolution of the tissue mask.

* sharpness: mean absolute Laplacian over the standard deviation of brightness, at 1 um per pixel: free of stain and
  contrast. Tissue in focus has 0.12 or more; blurred by a Gaussian of 8 um it falls below 0.05.
* fold: share of pixels that are dark and saturated at once, as tissue in two layers is.
* pen: share of pixels with the colours of ink.
* edge: share of the tile outside the picture.
"""

from __future__ import annotations

import base64
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import Field

from marble.slides.readers.planes import Pixels
from marble.specs import Spec

COLUMNS = ("sharpness", "fold", "pen", "edge")
Measures = npt.NDArray[np.float32]  # (n, 4), in the order of COLUMNS

_FOLD_BRIGHTNESS, _FOLD_SATURATION = 110, 110  # of 255
_INK_HUES, _INK_CHROMA = (35, 122), 90  # of OpenCV's 180: green to blue; haematoxylin starts near 128
_BLACK = 45
_ROUNDING = 0.5  # mean absolute Laplacian that whole numbers alone make of a smooth picture
_FLAT = 4.0  # contrast below which there is nothing to be sharp
_MEASURED_MPP = 1.0
_STEPS = 255


class QualitySpec(Spec):
    """Which finest tiles are left out for their looks. By default none is; what was measured is recorded either way."""

    min_sharpness: float = Field(
        default=0.0, ge=0, le=10, description="finest tiles below it are left out; 0.1 finds blur"
    )
    max_fold: float = Field(default=1.0, ge=0, le=1, description="most of a tile that may be folded")
    max_pen: float = Field(default=1.0, ge=0, le=1, description="most of a tile that may be inked")
    max_edge: float = Field(default=1.0, ge=0, le=1, description="most of a tile that may lie outside the picture")

    @property
    def is_on(self) -> bool:
        return self != QualitySpec()

    def keeps(self, measures: Measures) -> npt.NDArray[np.bool_]:
        """(n,) which tiles are good enough."""
        most = np.array([np.inf, self.max_fold, self.max_pen, self.max_edge], np.float32)
        return np.asarray((measures[:, 0] >= self.min_sharpness) & (measures <= most).all(axis=1))


def measure(pixels: Pixels, mpp: float) -> tuple[float, float, float]:
    """Sharpness, fold and pen of a tile (h, w, 3) with `mpp` um per pixel."""
    shrink = mpp / _MEASURED_MPP
    if shrink < 1:  # at the scan's own finest pixels noise would pass for detail
        side = max(16, round(pixels.shape[1] * shrink)), max(16, round(pixels.shape[0] * shrink))
        pixels = np.asarray(cv2.resize(pixels, side, interpolation=cv2.INTER_AREA), np.uint8)
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.float32)
    detail = float(np.abs(cv2.Laplacian(grey, cv2.CV_32F)).mean())
    sharpness = max(0.0, detail - _ROUNDING) / (float(grey.std()) + _FLAT)
    hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)
    hue, saturation, value = (hsv[..., k].astype(np.int32) for k in range(3))
    fold = (value < _FOLD_BRIGHTNESS) & (saturation > _FOLD_SATURATION) & (value > _BLACK)
    chroma = value * saturation // 255
    ink = ((hue >= _INK_HUES[0]) & (hue <= _INK_HUES[1]) & (chroma >= _INK_CHROMA)) | (value < _BLACK)
    return sharpness, float(fold.mean()), float(ink.mean())


def outside(boxes: npt.NDArray[np.int64], l0_size_px: tuple[int, int]) -> npt.NDArray[np.float32]:
    """(n,) share of boxes (n, 4) that lies outside the picture."""
    x, y, width, height = boxes.T
    across = np.clip(np.minimum(x + width, l0_size_px[0]) - np.maximum(x, 0), 0, None)
    down = np.clip(np.minimum(y + height, l0_size_px[1]) - np.maximum(y, 0), 0, None)
    return np.asarray(1 - across * down / (width * height), np.float32)


def to_record(measures: Measures, rejected: int) -> dict[str, Any]:
    """For a bag's record: what was seen in short, and each tile's measures in steps of 1/255 (sharpness up to 1)."""
    steps = np.rint(np.clip(measures, 0, 1) * _STEPS).astype(np.uint8)  # (n, 4)
    quantiles = np.quantile(measures, (0.05, 0.5, 0.95), axis=0) if len(measures) else np.zeros((3, len(COLUMNS)))
    return {
        "columns": list(COLUMNS),
        "rejected": rejected,
        "quantiles_5_50_95": {
            name: [round(float(value), 4) for value in quantiles[:, k]] for k, name in enumerate(COLUMNS)
        },
        "tiles": base64.b64encode(steps.tobytes()).decode("ascii"),
    }


def from_record(recorded: dict[str, Any]) -> Measures:
    """(n, 4) the measures of a record's finest tiles, in the bag's order."""
    steps = np.frombuffer(base64.b64decode(recorded["tiles"], validate=True), np.uint8)
    return np.asarray(steps.reshape(-1, len(COLUMNS)) / np.float32(_STEPS), np.float32)
