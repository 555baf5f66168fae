"""Small slides with known pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tifffile

Pixels = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def box_mean(pixels: Pixels, factor: int) -> Pixels:
    """Every factor x factor pixels as their mean, leftovers cut off."""
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    cut = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, 3)
    return np.asarray(np.rint(cut.mean((1, 3))), np.uint8)


def write_tiff(
    path: Path, planes: Sequence[Pixels], *, mpp: float | tuple[float, float] | None = 0.5, **options: Any
) -> Path:
    """A lossless pyramid in top-level directories."""
    tile = options.pop("tile", (256, 256))
    with tifffile.TiffWriter(path, bigtiff=options.pop("bigtiff", False)) as tiff:
        for i, plane in enumerate(planes):
            resolution: dict[str, Any] = {}
            if mpp is not None:
                x, y = mpp if isinstance(mpp, tuple) else (mpp, mpp)
                scale = planes[0].shape[1] / plane.shape[1]
                resolution = {"resolution": (1e4 / (x * scale), 1e4 / (y * scale)), "resolutionunit": "CENTIMETER"}
            settings = {"compression": "zlib", "photometric": "rgb", "metadata": None, **resolution, **options}
            tiff.write(plane, tile=tile, subfiletype=int(i > 0), **settings)
    return path


def drop_tiles(path: Path, indices: Sequence[int]) -> None:
    """Make tiles of the first image missing, as TIFF says it: place 0, length 0."""
    with tifffile.TiffFile(path, mode="r+") as tiff:
        first: Any = tiff.pages[0]
        for name in ("TileOffsets", "TileByteCounts"):
            values = list(first.tags[name].value)
            for index in indices:
                values[index] = 0
            first.tags[name].overwrite(values)


def spoil_tiles(path: Path, indices: Sequence[int]) -> None:
    """Overwrite the compressed bytes of tiles of the first image."""
    with tifffile.TiffFile(path) as tiff:
        places = [(tiff.pages[0].dataoffsets[i], tiff.pages[0].databytecounts[i]) for i in indices]
    with open(path, "r+b") as file:
        for offset, count in places:
            file.seek(offset)
            file.write(b"\xa5" * count)


@pytest.fixture
def noise() -> Callable[..., Pixels]:
    """Random pixels in smooth blocks, different everywhere."""

    def make(width: int, height: int, seed: int = 0) -> Pixels:
        return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)

    return make
