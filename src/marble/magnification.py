"""Nominal magnification and pixel size: 10x is 1 um per pixel, on every scanner."""

from __future__ import annotations

MPP_AT_1X = 10.0


def mpp_at(magnification: float) -> float:
    """Micrometres per pixel at a nominal magnification."""
    return MPP_AT_1X / magnification


def magnification_at(mpp: float) -> float:
    """The nominal magnification at which a pixel is `mpp` micrometres wide."""
    return MPP_AT_1X / mpp
