"""Made-up H&E slides: quick to write at any size, with lesions and marks at known places.

A slide is a map of pieces of tissue (a few numbers for every 32 um) that says, for each pixel, how much of three
endless textures to show: glands, stroma and tumour. Textures are made once for the pixel size, wrap around at their
edges, and are mixed tile by tile, so a slide of any size needs the memory of its second plane only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import cv2
import numpy as np
import numpy.typing as npt
import tifffile

from marble.errors import InputError
from marble.files import publish
from marble.magnification import magnification_at
from marble.synthetic.histology import BACKGROUND, GLASS, TissueMap, glass, textures, tissue_map

Pixels = npt.NDArray[np.uint8]  # (h, w, 3)
Format = Literal["generic-tiff", "svs", "ome-tiff", "single-level"]
Kind = Literal["lesion", "mark"]

DOWNSAMPLE = 4
SMALLEST_PLANE_PX = 512
_THUMBNAIL_PX = 512
_MARK_BLOCK_PX = 8
_APERIO = "Aperio Image Library v12"


@dataclass(frozen=True)
class Planted:
    """Something put at a known place: a round `lesion` of tumour, or a `mark` whose every pixel is known."""

    kind: Kind
    l0_box: tuple[int, int, int, int]  # x, y, width, height in level-0 pixels


class Canvas(Protocol):
    """A picture of any size that is drawn part by part."""

    @property
    def size_px(self) -> tuple[int, int]: ...

    @property
    def mpp(self) -> float: ...

    def part(self, x: int, y: int, width: int, height: int) -> Pixels:
        """(h, w, 3); white glass beyond the edges."""


def write_slide(
    path: str | Path,
    size_px: tuple[int, int],
    *,
    mpp: float = 0.5,
    seed: int = 0,
    format: Format = "generic-tiff",  # noqa: A002
    planted: Sequence[Planted] = (),
    pieces: int = 3,
    tile_px: int = 256,
    quality: int | None = 85,
) -> Path:
    """Write a slide of `size_px` (width, height).

    Args:
        path: the file to write.
        size_px: width and height of the finest plane.
        mpp: um per pixel.
        seed: everything random follows from it.
        format: pyramid in top-level directories, as Aperio writes it, in SubIFDs, or no pyramid.
        planted: what to put where.
        pieces: pieces of tissue; 0 leaves the glass empty.
        tile_px: side of the file's own tiles.
        quality: of JPEG; None stores the pixels losslessly.
    """
    return write_canvas(path, _Canvas(size_px, mpp, seed, tuple(planted), pieces), format, tile_px, quality)


def write_canvas(
    path: str | Path,
    canvas: Canvas,
    format: Format = "generic-tiff",  # noqa: A002
    tile_px: int = 256,
    quality: int | None = 85,
) -> Path:
    """Write what a canvas shows as a slide; arguments as for `write_slide`."""
    if tile_px % (16 * DOWNSAMPLE):
        raise InputError(f"tile_px must be a multiple of {16 * DOWNSAMPLE}, got {tile_px}")
    return publish(path, lambda file: _Writer(file, canvas, format, tile_px, quality).write())


def mark_pixels(width: int, height: int, seed: int = 0) -> Pixels:
    """(h, w, 3) what a planted mark looks like: coloured blocks that no rotation or reflection maps onto themselves."""
    rng = np.random.default_rng((seed, width, height))
    blocks = -(-height // _MARK_BLOCK_PX), -(-width // _MARK_BLOCK_PX)
    coarse = rng.integers(0, 256, (*blocks, 3), dtype=np.uint8)
    return np.kron(coarse, np.ones((_MARK_BLOCK_PX, _MARK_BLOCK_PX, 1), np.uint8))[:height, :width]


class _Canvas:
    """Any part of the finest plane, on demand."""

    def __init__(
        self, size_px: tuple[int, int], mpp: float, seed: int, planted: tuple[Planted, ...], pieces: int
    ) -> None:
        self.size_px, self.mpp, self.seed, self.planted = size_px, mpp, seed, planted
        lesions = [item.l0_box for item in planted if item.kind == "lesion"]
        self.map: TissueMap = tissue_map(size_px, mpp, seed, pieces, lesions)

    def part(self, x: int, y: int, width: int, height: int) -> Pixels:
        """(h, w, 3); white glass beyond the edges."""
        pixels = self._tissue(x, y, width, height)
        for item in self.planted:
            if item.kind == "mark":
                self._paste_mark(pixels, x, y, item.l0_box)
        right, bottom = max(0, self.size_px[0] - x), max(0, self.size_px[1] - y)
        pixels[bottom:], pixels[:, right:] = BACKGROUND, BACKGROUND
        return pixels

    def _tissue(self, x: int, y: int, width: int, height: int) -> Pixels:
        only = self.map.only(x, y, width, height)
        if only == GLASS:
            return glass(width, height).copy()
        surface = textures(self.mpp)
        if only is not None:
            return surface.part(only, x, y, width, height).copy()
        weights = self.map.weights(x, y, width, height)
        bare = 1 - weights[0] - weights[1] - weights[2]
        mixed = bare[..., None] * np.array(BACKGROUND, np.float32)  # (h, w, 3)
        for which, weight in enumerate(weights):
            if weight.any():
                mixed += surface.part(which, x, y, width, height) * weight[..., None]
        return np.asarray(np.rint(np.clip(mixed, 0, 255)), np.uint8)

    def _paste_mark(self, pixels: Pixels, x: int, y: int, box: tuple[int, int, int, int]) -> None:
        left, top = max(x, box[0]), max(y, box[1])
        right = min(x + pixels.shape[1], box[0] + box[2])
        bottom = min(y + pixels.shape[0], box[1] + box[3])
        if left < right and top < bottom:
            mark = mark_pixels(box[2], box[3], self.seed)
            shown = mark[top - box[1] : bottom - box[1], left - box[0] : right - box[0]]
            pixels[top - y : bottom - y, left - x : right - x] = shown


class _Writer:
    """Writes all planes of a canvas in one pass over the finest."""

    def __init__(self, file: BinaryIO, canvas: Canvas, layout: Format, tile_px: int, quality: int | None) -> None:
        self.file, self.canvas, self.layout, self.tile_px = file, canvas, layout, tile_px
        self.options: dict[str, Any] = {"tile": (tile_px, tile_px), "dtype": np.uint8}
        if quality is None:
            self.options |= {"compression": "zlib", "photometric": "rgb"}
        else:
            self.options |= {"compression": "jpeg", "compressionargs": {"level": quality}, "photometric": "rgb"}
        width, height = canvas.size_px
        self.sizes = [(width, height)]
        while layout != "single-level" and max(self.sizes[-1]) // DOWNSAMPLE >= SMALLEST_PLANE_PX:
            self.sizes.append((self.sizes[-1][0] // DOWNSAMPLE, self.sizes[-1][1] // DOWNSAMPLE))
        self.second = np.full((height // DOWNSAMPLE, width // DOWNSAMPLE, 3), BACKGROUND, np.uint8)

    def write(self) -> None:
        width, height = self.canvas.size_px
        with tifffile.TiffWriter(self.file, bigtiff=width * height > 2**31, ome=self.layout == "ome-tiff") as tiff:
            tiff.write(self._finest(), shape=(height, width, 3), **self.options, **self._first_extras())
            if self.layout == "svs":
                thumbnail = _shrunk_to(self.second, _THUMBNAIL_PX)
                text = f"{_APERIO}\n{width}x{height} -> {thumbnail.shape[1]}x{thumbnail.shape[0]} - "
                tiff.write(
                    thumbnail, photometric="rgb", compression="zlib", rowsperstrip=16, metadata=None, description=text
                )
            plane = self.second
            for i, size in enumerate(self.sizes[1:], start=1):
                if i > 1:
                    plane = _reduced(plane, DOWNSAMPLE)
                tiff.write(self._cut(plane), shape=(size[1], size[0], 3), **self.options, **self._plane_extras(i))

    def _finest(self) -> Iterator[Pixels]:
        width, height = self.canvas.size_px
        for y in range(0, height, self.tile_px):
            for x in range(0, width, self.tile_px):
                tile = self.canvas.part(x, y, self.tile_px, self.tile_px)
                rows, columns = (min(self.tile_px, side - at) // DOWNSAMPLE for side, at in ((height, y), (width, x)))
                if rows and columns:
                    part = _reduced(tile[: rows * DOWNSAMPLE, : columns * DOWNSAMPLE], DOWNSAMPLE)
                    self.second[y // DOWNSAMPLE :, x // DOWNSAMPLE :][:rows, :columns] = part
                yield tile

    def _cut(self, plane: Pixels) -> Iterator[Pixels]:
        side = self.tile_px
        for y in range(0, plane.shape[0], side):
            for x in range(0, plane.shape[1], side):
                tile = glass(side, side).copy()
                part = plane[y : y + side, x : x + side]
                tile[: part.shape[0], : part.shape[1]] = part
                yield tile

    def _first_extras(self) -> dict[str, Any]:
        width, height = self.canvas.size_px
        mpp = self.canvas.mpp
        if self.layout == "ome-tiff":
            physical = {f"PhysicalSize{axis}": mpp for axis in "XY"} | {
                f"PhysicalSize{axis}Unit": "µm" for axis in "XY"
            }
            return {"subifds": len(self.sizes) - 1, "metadata": {"axes": "YXS", **physical}}
        if self.layout == "svs":
            where = f"{width}x{height} [0,0 {width}x{height}] ({self.tile_px}x{self.tile_px})"
            text = f"{_APERIO}\n{where} JPEG/RGB Q=85|AppMag = {magnification_at(mpp):.0f}|MPP = {mpp}"
            return {"description": text, "metadata": None}
        return {"metadata": None, **self._resolution(0)}

    def _plane_extras(self, plane: int) -> dict[str, Any]:
        if self.layout == "ome-tiff":
            return {"subfiletype": 1}
        if self.layout == "svs":
            width, height = self.sizes[plane]
            return {"description": f"{_APERIO}\n{width}x{height} JPEG/RGB Q=85", "metadata": None}
        return {"subfiletype": 1, "metadata": None, **self._resolution(plane)}

    def _resolution(self, plane: int) -> dict[str, Any]:
        per_cm = 10_000 / (self.canvas.mpp * DOWNSAMPLE**plane)
        return {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER"}


def _reduced(pixels: Pixels, factor: int) -> Pixels:
    """Every `factor` x `factor` pixels as their mean; what is left over at the edges is cut off."""
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    whole = np.ascontiguousarray(pixels[: height * factor, : width * factor])
    return np.asarray(cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _shrunk_to(pixels: Pixels, longest_px: int) -> Pixels:
    scale = min(1.0, longest_px / max(pixels.shape[:2]))
    size = max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
