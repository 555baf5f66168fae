"""The overlay: values over a picture of the slide. One tile, one value; nothing is interpolated or smoothed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from marble import files
from marble.attribution.tile_map import Placement, TileMap
from marble.errors import InputError
from marble.heatmaps.colours import coloured, default_colours
from marble.heatmaps.frame import Frame, Framed, framed

Pixels = NDArray[np.uint8]  # (h, w, 3)
OPACITY = 0.6


@dataclass(frozen=True)
class Words:
    """What the picture says about itself: the slide, and what was predicted."""

    title: str
    lines: tuple[str, ...] = ()


def blank(l0_size_px: tuple[int, int], max_px: int) -> Pixels:
    """A light picture in the slide's proportions, for a slide whose file is not at hand."""
    scale = min(1.0, max_px / max(l0_size_px))
    width, height = (max(1, round(side * scale)) for side in l0_size_px)
    return np.full((height, width, 3), 246, np.uint8)


def blend(
    picture: Pixels, l0_size_px: tuple[int, int], tiles: TileMap, colours: str | None = None, opacity: float = OPACITY
) -> Pixels:
    """(h, w, 3) the picture with every tile's colour over exactly its rectangle; the weaker, the more tissue shows."""
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity must be in 0 to 1, got {opacity}")
    height, width = picture.shape[:2]
    paint = coloured(tiles.scaled(), colours or default_colours(tiles.signed)).astype(np.float32)  # (T, 3)
    out = picture.astype(np.float32)
    edges = Placement(l0_size_px, (width, height)).edges(tiles.l0_boxes)
    for (left, top, right, bottom), colour, weight in zip(edges.tolist(), paint, tiles.weights(), strict=True):
        here = np.s_[top:bottom, left:right]
        out[here] = (1 - opacity * weight) * out[here] + opacity * weight * colour
    return np.rint(out).astype(np.uint8)


def draw_heatmap(
    picture: Pixels,
    l0_size_px: tuple[int, int],
    tiles: TileMap,
    words: Words,
    *,
    mpp: float | None = None,
    colours: str | None = None,
    opacity: float = OPACITY,
) -> Framed:
    """The overlay with title, colour bar and scale bar. `picture` is the whole slide at any size."""
    colours = colours or default_colours(tiles.signed)
    low, high = tiles.limits
    um_per_px = None if mpp is None else mpp * l0_size_px[0] / picture.shape[1]
    inner = blend(picture, l0_size_px, tiles, colours, opacity)
    return framed(inner, Frame(words.title, words.lines, um_per_px, (colours, low, high, tiles.name)))


def png_bytes(pixels: Pixels) -> bytes:
    good, data = cv2.imencode(".png", np.ascontiguousarray(pixels[:, :, ::-1]))
    if not good:
        raise InputError("the picture could not be written as PNG")
    return data.tobytes()


def write_png(path: str | Path, pixels: Pixels) -> Path:
    """Publish a picture as PNG."""
    return files.publish(path, png_bytes(pixels))
