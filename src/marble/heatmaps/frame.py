"""What surrounds a heatmap's picture: title, colour bar, scale bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from marble.heatmaps.colours import coloured

Pixels = NDArray[np.uint8]  # (h, w, 3)
INK, SOFT, PAPER, LINE = (28, 31, 36), (92, 100, 112), (255, 255, 255), (150, 156, 165)


@dataclass(frozen=True)
class Frame:
    """What to write around the picture.

    Args:
        title: the first line, large.
        lines: below it, small.
        um_per_px: of the picture, for the scale bar; None leaves it out.
        bar: colour map, its lower and upper value, and what they are; None leaves it out.
    """

    title: str
    lines: tuple[str, ...] = ()
    um_per_px: float | None = None
    bar: tuple[str, float, float, str] | None = None


@dataclass(frozen=True, eq=False)
class Framed:
    """The whole picture, and the box (x, y, width, height) of the inner one within it."""

    pixels: Pixels
    inner: tuple[int, int, int, int]


@cache
def font(px: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """A font that is always here: matplotlib ships it."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / name), px)


def framed(inner: Pixels, frame: Frame) -> Framed:
    """Put the frame around `inner`, which is not touched."""
    height, width = inner.shape[:2]
    text = int(np.clip(max(width, height) / 75, 12, 26))
    pad = 2 * text
    head = pad + int(1.9 * text) + len(frame.lines) * int(1.5 * text)
    longest = max(
        [font(int(1.4 * text), bold=True).getlength(frame.title), *(font(text).getlength(one) for one in frame.lines)]
    )
    side = 0 if frame.bar is None else max(7 * text, int(font(text).getlength(frame.bar[3])))
    foot = pad if frame.um_per_px is None else 4 * text
    whole = Image.new("RGB", (max(width + side, int(longest)) + 2 * pad, head + height + foot), PAPER)
    whole.paste(Image.fromarray(inner), (pad, head))
    draw = ImageDraw.Draw(whole)
    draw.rectangle((pad - 1, head - 1, pad + width, head + height), outline=LINE)
    draw.text((pad, pad - text // 2), frame.title, INK, font(int(1.4 * text), bold=True))
    for row, line in enumerate(frame.lines):
        draw.text((pad, pad + int(1.4 * text) + row * int(1.5 * text)), line, SOFT, font(text))
    if frame.bar is not None:
        _colour_bar(whole, draw, (pad + width + text, head), min(height, 24 * text), text, frame.bar)
    if frame.um_per_px is not None:
        _scale_bar(draw, (pad, head + height + text), width, text, frame.um_per_px)
    return Framed(np.asarray(whole), (pad, head, width, height))


def scale_length(width_um: float) -> float:
    """A round length, 1, 2 or 5 times a power of ten, of at most a quarter of the width."""
    power = 10.0 ** np.floor(np.log10(width_um / 4))
    return float(max(step * power for step in (1, 2, 5) if step * power <= width_um / 4 * (1 + 1e-9)))


def length_text(um: float) -> str:
    return f"{um / 1000:g} mm" if um >= 1000 else f"{um:g} µm"


def _colour_bar(
    whole: Image.Image, draw: ImageDraw.ImageDraw, corner: tuple[int, int], height: int, text: int,
    bar: tuple[str, float, float, str],
) -> None:  # fmt: skip
    name, low, high, label = bar
    x, y = corner
    top, bottom = y + 2 * text, y + height - text
    ramp = coloured(np.linspace(1, 0, bottom - top), name)  # (h, 3), the highest value on top
    whole.paste(Image.fromarray(np.repeat(ramp[:, None], int(1.2 * text), axis=1)), (x, top))
    draw.rectangle((x - 1, top - 1, x + int(1.2 * text), bottom), outline=LINE)
    draw.text((x, y), label, SOFT, font(text))
    ends = telling_apart((high, (low + high) / 2, low))
    for said, at in zip(ends, (top, (top + bottom) / 2, bottom), strict=True):
        draw.text((x + int(1.7 * text), at), said, INK, font(text), anchor="lm")


def telling_apart(values: Sequence[float]) -> list[str]:
    """The values in two digits, or in as many as it takes to see that they differ (at most six)."""
    for digits in range(2, 7):
        texts = [f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def _scale_bar(draw: ImageDraw.ImageDraw, corner: tuple[int, int], width: int, text: int, um_per_px: float) -> None:
    um = scale_length(width * um_per_px)
    x, y = corner
    draw.rectangle((x, y, x + round(um / um_per_px) - 1, y + max(3, text // 4)), fill=INK)
    draw.text((x, y + text // 2 + 2), length_text(um), INK, font(text))
