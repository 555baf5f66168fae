"""Colour scales of heatmaps: the same table of 256 colours for pictures and for the viewer."""

from __future__ import annotations

from functools import cache

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from marble.errors import InputError
from marble.specs import unknown_choice

Colours = NDArray[np.uint8]  # (..., 3) red, green, blue

SEQUENTIAL = ("viridis", "inferno", "cividis", "turbo")
DIVERGING = ("RdBu_r", "PuOr_r")


def default_colours(signed: bool) -> str:
    return DIVERGING[0] if signed else SEQUENTIAL[0]


@cache
def colour_table(name: str) -> Colours:
    """(256, 3) from the lowest value to the highest."""
    known = (*SEQUENTIAL, *DIVERGING)
    if name not in known:
        raise InputError(unknown_choice("colour map", name, list(known)))
    return np.asarray(np.rint(mpl.colormaps[name](np.arange(256))[:, :3] * 255), np.uint8)


def coloured(scaled: NDArray[np.float64], name: str) -> Colours:
    """(..., 3) colours of values from 0 to 1."""
    return colour_table(name)[np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)]
