"""Colour statistics of a tile: an encoder without a network.

Whatever a learned encoder reports on a task, this control says how much of it the stain's colour alone explains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
DIM = 3 * (2 + len(QUANTILES))


def colour_statistics(tiles: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 24): for red, green and blue the mean, the standard deviation and six quantiles, scaled to 0..1."""
    n = len(tiles)
    channels = tiles.reshape(n, -1, 3)  # (n, pixels, 3)
    ordered = np.sort(channels, axis=1)
    at = [min(int(q * ordered.shape[1]), ordered.shape[1] - 1) for q in QUANTILES]
    parts = [
        channels.mean(axis=1, dtype=np.float64)[:, None],
        channels.std(axis=1, dtype=np.float64)[:, None],
        ordered[:, at],
    ]
    statistics = np.concatenate(parts, axis=1) / 255.0  # (n, 8, 3)
    return statistics.reshape(n, DIM).astype(np.float32)
