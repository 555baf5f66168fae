"""From cells of a lattice to level-0 pixels: the one place that knows how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: how many tiles of a level may lie side by side in one of the level above
MAX_RATIO = 64


def cell_boxes(
    cells: npt.NDArray[Any], extent: int, l0_origin_px: Sequence[int], pitch: float | None = None
) -> npt.NDArray[np.int64]:
    """(T, 4) x, y, width, height in level-0 pixels of cells (T, 2) of row and column.

    Cells are `pitch` pixels apart, by default as far as a tile is wide.
    """
    step = extent if pitch is None else pitch
    corner = np.rint(cells[:, ::-1].astype(np.int64) * step).astype(np.int64) + np.asarray(l0_origin_px, np.int64)
    return np.concatenate((corner, np.full_like(corner, extent)), axis=1)
