"""What a heatmap shows: one value per tile, and where the tile lies on the slide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marble.errors import InputError, NonFiniteError

Boxes = NDArray[np.int64]  # (T, 4) of x, y, width, height in level-0 pixels
Floats = NDArray[np.float64]
FAINTEST = 0.08  # of a tile at 0: the tissue below it is seen as it is


@dataclass(frozen=True, eq=False)
class TileMap:
    """One level of an explanation.

    Args:
        name: what the values are, for example "attention".
        level: 0 is the coarsest.
        magnification: nominal, None if the bag does not know it.
        cells: (T, 2) row and column.
        l0_boxes: (T, 4) each tile's rectangle on the slide.
        parent: (T,) index into the next coarser level's map; None for the coarsest.
        values: (T,) one per tile.
        signed: values have a meaning of their own on either side of zero.
        stretched: the colour scale starts at the smallest value instead of 0, to tell nearly equal tiles apart.
    """

    name: str
    level: int
    magnification: float | None
    cells: NDArray[np.int32]
    l0_boxes: Boxes
    parent: NDArray[np.int64] | None
    values: Floats
    signed: bool = False
    stretched: bool = False

    def __post_init__(self) -> None:
        if not len(self.values) == len(self.l0_boxes) == len(self.cells) > 0:
            raise InputError(
                f"{len(self.values)} values for {len(self.l0_boxes)} boxes and {len(self.cells)} cells",
                where=f"level {self.level}",
            )
        if not np.isfinite(self.values).all():
            raise NonFiniteError("a heatmap value is NaN or infinite", where=f"level {self.level}")

    @property
    def limits(self) -> tuple[float, float]:
        """The values at the two ends of the colour scale: 0 to the largest, or symmetric around 0 if signed."""
        largest = float(np.abs(self.values).max()) or 1.0
        if self.signed:
            return -largest, largest
        smallest = float(self.values.min())
        return (smallest if self.stretched and smallest < largest else 0.0), largest

    def scaled(self) -> Floats:
        """(T,) values from 0 to 1 on the colour scale."""
        low, high = self.limits
        return (self.values - low) / (high - low)

    def weights(self) -> Floats:
        """(T,) how strongly a tile's colour covers the tissue: fully at the ends of the scale, faintly at 0."""
        low, high = self.limits
        share = np.abs(self.values) / high if self.signed else (self.values - low) / (high - low)
        return FAINTEST + (1 - FAINTEST) * share


@dataclass(frozen=True)
class Placement:
    """The one transform from level-0 pixels to pixels of a picture of the whole slide."""

    l0_size_px: tuple[int, int]
    out_px: tuple[int, int]

    def edges(self, l0_boxes: Boxes) -> NDArray[np.int64]:
        """(T, 4) left, top, right, bottom in picture pixels; tiles that touch on the slide touch in the picture."""
        corner = l0_boxes[:, :2]
        both = np.concatenate((corner, corner + l0_boxes[:, 2:]), axis=1)  # (T, 4)
        scale = np.array(self.out_px * 2) / np.array(self.l0_size_px * 2)
        return np.asarray(np.clip(np.rint(both * scale), 0, self.out_px * 2), np.int64)
