"""How made-up tissue looks: textures in haematoxylin and eosin, and the map that says where they go.

Colour follows absorption: each pixel holds an amount of either stain, and light falls off exponentially with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]  # (h, w, 3)
Pair = tuple[float, float] | npt.NDArray[np.float64]  # x, y
BACKGROUND = (244, 242, 244)

_TEXTURE_PX = 1536
_MAP_UM = 32.0
_STEEPNESS = 4.0
_PURE = 0.7  # above 0.5 + 0.5 / _STEEPNESS a weight is 1
GLASS = -1
# Absorption of red, green and blue by one unit of either stain.
_HAEMATOXYLIN = np.array((0.65, 0.70, 0.29), np.float32)
_EOSIN = np.array((0.07, 0.72, 0.22), np.float32)
_SHIFT = 4  # cv2 draws at 1/16 of a pixel


@dataclass(frozen=True)
class Textures:
    """Three pictures (n, n, 3) that wrap around at their edges."""

    glands: Pixels
    stroma: Pixels
    tumour: Pixels

    @property
    def all(self) -> tuple[Pixels, Pixels, Pixels]:
        return self.glands, self.stroma, self.tumour

    def part(self, which: int, x: int, y: int, width: int, height: int) -> Pixels:
        """(h, w, 3) of a texture, repeated without end."""
        texture = self.all[which]
        side = texture.shape[0]
        x, y = x % side, y % side
        if x + width <= side and y + height <= side:
            return texture[y : y + height, x : x + width]
        return texture[np.ix_(np.arange(y, y + height) % side, np.arange(x, x + width) % side)]


@lru_cache(maxsize=8)
def glass(width: int, height: int) -> Pixels:
    """(h, w, 3) of bare glass; made once, since most of a drawn slide is that, so not to be written to."""
    pixels = np.full((height, width, 3), BACKGROUND, np.uint8)
    pixels.setflags(write=False)
    return pixels


@lru_cache(maxsize=2)
def textures(mpp: float) -> Textures:
    """The textures for a pixel size; made once, shared by all slides."""
    return Textures(*(_Sheet(mpp, number).paint(kind) for number, kind in enumerate(("glands", "stroma", "tumour"))))


@dataclass(frozen=True)
class TissueMap:
    """Weights of the three textures on a coarse grid (rows, columns, 3), zero where the glass is empty."""

    grid: Floats
    px_per_cell: float

    def only(self, x: int, y: int, width: int, height: int) -> int | None:
        """The one texture that a part of the finest plane shows; `GLASS` for none; None for a mixture.

        Weights are interpolated between cells, so what holds for all cells around a part holds within it.
        """
        scale = self.px_per_cell
        left, top = int(x / scale), int(y / scale)
        right, bottom = int((x + width) / scale) + 3, int((y + height) / scale) + 3
        near = self.grid[max(0, top - 1) : bottom, max(0, left - 1) : right].reshape(-1, 3)
        if not near.any():
            return GLASS
        total = near.sum(axis=1)
        pure = (near >= _PURE * total[:, None]).all(axis=0) & (total.min() >= _PURE)
        beyond_map = bottom > self.grid.shape[0] or right > self.grid.shape[1] or min(left, top) < 1
        return None if beyond_map or not pure.any() else int(np.argmax(pure))

    def weights(self, x: int, y: int, width: int, height: int) -> list[Floats]:
        """(h, w) of glands, stroma and tumour for a part of the finest plane."""
        scale = self.px_per_cell
        # Cell (r, c) lies at pixel ((c + 0.5) * scale, (r + 0.5) * scale).
        matrix = np.array([[1 / scale, 0, (x + 0.5) / scale - 0.5], [0, 1 / scale, (y + 0.5) / scale - 0.5]])
        found = cv2.warpAffine(
            self.grid,
            matrix,
            (width, height),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=(0, 0, 0),
        )
        return _sharpened(np.asarray(found, np.float32))


def tissue_map(
    size_px: tuple[int, int], mpp: float, seed: int, pieces: int, lesions: Sequence[tuple[int, int, int, int]]
) -> TissueMap:
    """Lay `pieces` ragged pieces of tissue, glands within stroma, and a round of tumour in every lesion box."""
    px_per_cell = max(1.0, _MAP_UM / mpp)
    columns, rows = (max(4, round(side / px_per_cell)) for side in size_px)
    rng = np.random.default_rng(seed)
    rough = _smooth_noise(rng, (rows, columns), 6.0) * 0.6 + _smooth_noise(rng, (rows, columns), 2.0) * 0.25
    body = np.zeros((rows, columns), np.float32)
    y, x = np.mgrid[:rows, :columns].astype(np.float32)
    for centre_x, centre_y, radius_x, radius_y, angle in _places(rng, rows, columns, pieces):
        along = (x - centre_x) * np.cos(angle) + (y - centre_y) * np.sin(angle)
        across = (y - centre_y) * np.cos(angle) - (x - centre_x) * np.sin(angle)
        distance = 1 - np.sqrt((along / radius_x) ** 2 + (across / radius_y) ** 2)
        body = np.maximum(body, np.clip((distance + 0.22 * rough) * 8 + 0.5, 0, 1))
    glandular = np.clip(_smooth_noise(rng, (rows, columns), 8.0) * 2.5 + 0.55, 0, 1)
    tumour = np.zeros_like(body)
    for left, top, width, height in lesions:
        centre_x, centre_y = (left + width / 2) / px_per_cell - 0.5, (top + height / 2) / px_per_cell - 0.5
        distance = ((x - centre_x) / (width / 2 / px_per_cell)) ** 2 + (
            (y - centre_y) / (height / 2 / px_per_cell)
        ) ** 2
        tumour = np.maximum(tumour, np.clip((1 - np.sqrt(distance)) * 6 + 0.5, 0, 1))
    rest = body * (1 - tumour)
    grid = np.stack((rest * glandular, rest * (1 - glandular), tumour), axis=2).astype(np.float32)
    return TissueMap(grid, px_per_cell)


class _Sheet:
    """Amounts of both stains on a square that wraps around, and brushes to put cells on it."""

    def __init__(self, mpp: float, number: int) -> None:
        self.mpp = mpp
        self.rng = np.random.default_rng(number)
        self.side_um = _TEXTURE_PX * mpp
        self.eosin = np.zeros((_TEXTURE_PX, _TEXTURE_PX), np.float32)
        self.haematoxylin = np.zeros_like(self.eosin)

    def paint(self, kind: str) -> Pixels:
        fibres = self._fibres(3.0 if kind == "stroma" else 5.0)
        self.eosin += np.clip(0.42 + 0.16 * fibres, 0.08, None)
        self.haematoxylin += 0.05 + 0.02 * np.abs(fibres)
        if kind == "stroma":
            self._scatter(1500, (5.5, 1.7), 0.95)
            self._scatter(300, (2.8, 2.6), 1.2)
        elif kind == "glands":
            self._scatter(1300, (4.5, 1.9), 0.95)
            self._glands()
        else:
            self.eosin *= 0.75
            self.haematoxylin += 0.16
            self._scatter(9000, (5.0, 3.8), 1.45)
        grain = self.rng.standard_normal(self.eosin.shape).astype(np.float32) * 0.015
        softness = max(0.35, 0.45 / self.mpp)
        stains = [
            np.clip(_wrapped_blur(amount, softness) + grain, 0, None) for amount in (self.haematoxylin, self.eosin)
        ]
        absorbed = stains[0][..., None] * _HAEMATOXYLIN + stains[1][..., None] * _EOSIN
        return np.rint(np.array(BACKGROUND, np.float32) * np.exp(-absorbed)).astype(np.uint8)

    def _fibres(self, width_um: float) -> Floats:
        """Wavy strands: noise smoothed far more along three directions than across them."""
        side = _TEXTURE_PX // 2  # repeated twice each way: strands show no pattern, and the transform is quick
        frequency = np.fft.fftfreq(side, d=self.mpp).astype(np.float32)
        fy, fx = frequency[:, None], frequency[None, :]
        keep = np.zeros((side, side), np.float32)
        for angle in (0.5, 0.9, 1.3):
            along, across = fx * np.cos(angle) + fy * np.sin(angle), fy * np.cos(angle) - fx * np.sin(angle)
            keep += np.exp(-((along * width_um * 14) ** 2 + (across * width_um * 2.2) ** 2))
        strands = np.fft.ifft2(np.fft.fft2(self.rng.standard_normal((side, side))) * keep).real
        return np.tile((strands / strands.std()).astype(np.float32), (2, 2))

    def _scatter(self, per_mm2: float, radii_um: tuple[float, float], amount: float) -> None:
        count = max(1, round(per_mm2 * (self.side_um / 1000) ** 2))
        for x, y in self.rng.uniform(0, self.side_um, (count, 2)):
            self._nucleus(x, y, radii_um, self.rng.uniform(0.2, 1.4), amount)

    def _glands(self) -> None:
        """Rings of upright nuclei around a pale lumen, on a jittered grid."""
        pitch = 115.0
        across = max(1, round(self.side_um / pitch))
        for row in range(across):
            for column in range(across):
                if self.rng.random() < 0.12:
                    continue
                shift = self.rng.uniform(-0.24, 0.24, 2) + np.array((0.0, 0.5 * (column % 2)))
                centre = (np.array((column, row)) + 0.5 + shift) * self.side_um / across % self.side_um
                radius = self.rng.uniform(20, 38) * self.rng.uniform(0.8, 1.25, 2)
                self._ellipse(self.eosin, centre, radius + 11, 0.0, 0.46)
                self._ellipse(self.haematoxylin, centre, radius + 11, 0.0, 0.14)
                self._ellipse(self.eosin, centre, radius * 0.55, 0.0, 0.06)
                self._ellipse(self.haematoxylin, centre, radius * 0.55, 0.0, 0.02)
                steps = int(2 * np.pi * radius.mean() / 6.2)
                for angle in np.arange(steps) * 2 * np.pi / steps:
                    reach = radius + self.rng.uniform(1.0, 5.0)
                    x, y = centre + reach * np.array((np.cos(angle), np.sin(angle)))
                    self._nucleus(x, y, (4.6, 2.5), angle, 1.15)

    def _nucleus(self, x: float, y: float, radii_um: tuple[float, float], angle: float, amount: float) -> None:
        grow = self.rng.uniform(0.75, 1.3)
        amount *= self.rng.uniform(0.7, 1.25)
        self._ellipse(self.haematoxylin, (x, y), (radii_um[0] * grow, radii_um[1] * grow), angle, amount)

    def _ellipse(self, sheet: Floats, centre_um: Pair, radii_um: Pair, angle: float, amount: float) -> None:
        """Filled; drawn again on the other side where it crosses the edge."""
        (x, y), (rx, ry) = centre_um, radii_um
        reach = max(rx, ry)
        one = 2**_SHIFT / self.mpp
        axes = (max(1, round(rx * one)), max(1, round(ry * one)))
        for dx in (-self.side_um, 0.0, self.side_um):
            for dy in (-self.side_um, 0.0, self.side_um):
                if -reach <= x + dx <= self.side_um + reach and -reach <= y + dy <= self.side_um + reach:
                    centre = (round((x + dx) * one), round((y + dy) * one))
                    cv2.ellipse(sheet, centre, axes, np.degrees(angle), 0, 360, float(amount), -1, cv2.LINE_8, _SHIFT)


def _places(rng: np.random.Generator, rows: int, columns: int, pieces: int) -> list[tuple[float, ...]]:
    """Centre, radii and tilt of each piece: side by side along the longer side of the slide."""
    places: list[tuple[float, ...]] = []
    for i in range(pieces):
        share = (i + 0.5 + rng.uniform(-0.1, 0.1)) / pieces
        off = rng.uniform(0.42, 0.58)
        longer, shorter = max(rows, columns), min(rows, columns)
        radius_along, radius_across = longer / pieces * rng.uniform(0.36, 0.46), shorter * rng.uniform(0.3, 0.4)
        x, y, rx, ry = share * columns, off * rows, radius_along, radius_across
        if rows > columns:
            x, y, rx, ry = off * columns, share * rows, radius_across, radius_along
        places.append((x, y, rx, ry, rng.uniform(-0.25, 0.25)))
    return places


def _smooth_noise(rng: np.random.Generator, shape: tuple[int, int], cells: float) -> Floats:
    noise = cv2.GaussianBlur(
        rng.standard_normal(shape).astype(np.float32), (0, 0), cells, borderType=cv2.BORDER_REFLECT
    )
    return np.asarray(noise / max(float(noise.std()), 1e-6), np.float32) * 0.5


def _sharpened(weights: Floats) -> list[Floats]:
    """Narrow the blurred borders of a magnified map: (h, w) for each texture, their sum in 0 to 1."""
    parts = cv2.split(weights)
    total = parts[0] + parts[1] + parts[2]
    steep = [np.clip((part / np.maximum(total, 1e-6) - 0.5) * _STEEPNESS + 0.5, 0, 1) for part in parts]
    body = np.clip((total - 0.5) * _STEEPNESS + 0.5, 0, 1) / np.maximum(steep[0] + steep[1] + steep[2], 1e-6)
    return [np.asarray(part * body, np.float32) for part in steep]


def _wrapped_blur(sheet: Floats, sigma_px: float) -> Floats:
    edge = int(np.ceil(3 * sigma_px)) + 1
    blurred = cv2.GaussianBlur(np.pad(sheet, edge, mode="wrap"), (0, 0), sigma_px)
    return np.asarray(blurred[edge:-edge, edge:-edge], np.float32)
