"""Data that ends too early, or was zeroed, is missing in every container; whole data never is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from marble.errors import SlideError
from marble.slides.readers.jpeg import Whole, judge
from marble.slides.slide import Box, Slide
from tests.slides.conftest import Pixels

TILE = 256
DAMAGES = ("quarter", "late", "half zeroed", "quarter, then its end")
SAMPLINGS = ("444", "422", "420")


def texture(width: int, height: int, seed: int = 0) -> Pixels:
    """Something like tissue: smooth, coloured, nowhere flat."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(60, 250, (height // 8 + 2, width // 8 + 2, 3)).astype(np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = rng.integers(-12, 13, (height, width, 3))
    return np.clip(np.asarray(smooth).astype(int) + noise, 0, 255).astype(np.uint8)


def damaged(stream: bytes, how: str) -> bytes:
    """A stream of the same length that lacks data."""
    if how == "quarter":
        return stream[: len(stream) // 4].ljust(len(stream), b"\0")
    if how == "quarter, then its end":
        return (stream[: len(stream) // 4] + b"\xff\xd9").ljust(len(stream), b"\0")
    if how == "late":
        return (stream[: len(stream) * 9 // 10] + b"\xff\xd9").ljust(len(stream), b"\0")
    half = len(stream) // 2
    return stream[:half] + bytes(len(stream) - half - 2) + stream[-2:]


def ome(path: Path, pixels: Pixels, sampling: str) -> None:
    options: dict[str, Any] = {"tile": (TILE, TILE), "compression": "jpeg", "photometric": "rgb"}
    factors = {"444": (1, 1), "422": (2, 1), "420": (2, 2)}[sampling]
    with tifffile.TiffWriter(path, ome=True) as tiff:
        about = {"axes": "YXS", "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
        tiff.write(pixels, subifds=1, metadata=about, subsampling=factors, **options)
        tiff.write(pixels[::4, ::4], subfiletype=1, subsampling=factors, **options)


def striped(path: Path, pixels: Pixels, sampling: str) -> None:
    resolution: dict[str, Any] = {"resolution": (2e4, 2e4), "resolutionunit": "CENTIMETER", "metadata": None}
    factors = {"444": (1, 1), "422": (2, 1), "420": (2, 2)}[sampling]
    tifffile.imwrite(
        path, pixels, rowsperstrip=64, compression="jpeg", photometric="rgb", subsampling=factors, **resolution
    )


def tiled(path: Path, pixels: Pixels, sampling: str) -> None:
    resolution: dict[str, Any] = {"resolution": (2e4, 2e4), "resolutionunit": "CENTIMETER", "metadata": None}
    factors = {"444": (1, 1), "422": (2, 1), "420": (2, 2)}[sampling]
    tifffile.imwrite(
        path, pixels, tile=(TILE, TILE), compression="jpeg", photometric="rgb", subsampling=factors, **resolution
    )


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("write", [ome, striped, tiled])
def test_segments_that_lack_data_are_missing_and_no_others(
    write: Callable[[Path, Pixels, str], None], how: str, sampling: str, tmp_path: Path
) -> None:
    path = tmp_path / "slide.tiff"
    pixels = texture(1024, 768)
    write(path, pixels, sampling)
    with Slide.open(path, mpp=0.5) as slide:
        whole = slide.read(Box(0, 0, 1024, 768), (1024, 768))
        assert whole.missing is None
    with tifffile.TiffFile(path) as tiff:
        page: Any = tiff.pages[0]
        places = list(zip(page.dataoffsets, page.databytecounts, strict=True))
        down, across = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, 1024)
    chosen = (1, 5, len(places) - 1)
    data = bytearray(path.read_bytes())
    for index in chosen:
        offset, count = places[index]
        data[offset : offset + count] = damaged(bytes(data[offset : offset + count]), how)
    path.write_bytes(bytes(data))
    expected = np.zeros((768, 1024), bool)
    for index in chosen:
        row, column = divmod(index, 1024 // across)
        expected[row * down : (row + 1) * down, column * across : (column + 1) * across] = True
    with Slide.open(path, mpp=0.5) as slide:
        region = slide.read(Box(0, 0, 1024, 768), (1024, 768))
    assert region.missing is not None
    np.testing.assert_array_equal(region.missing, expected)
    np.testing.assert_array_equal(region.pixels[~expected], whole.pixels[~expected])


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("options", [{"quality": 85, "subsampling": k} for k in (0, 1, 2)], ids=SAMPLINGS)
def test_a_plain_jpeg_that_lacks_data_is_refused(how: str, options: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    Image.fromarray(texture(700, 500)).save(path, **options)  # type: ignore[arg-type]
    with Slide.open(path, mpp=0.5) as slide:
        assert slide.l0_size_px == (700, 500)
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(SlideError, match=r"lacks picture data|cannot be decoded|cannot be read"):
        Slide.open(path, mpp=0.5)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("how", ["cut", "zeroed"])
def test_a_png_that_lacks_data_is_refused(how: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    Image.fromarray(texture(300, 200)).save(path)
    data = path.read_bytes()
    at = int(len(data) * share)
    path.write_bytes(data[:at] if how == "cut" else data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :])
    with pytest.raises(SlideError, match=r"lacks picture data|cannot be decoded|cannot be read|neither"):
        Slide.open(path, mpp=0.5)


@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["texture", "noise", "white", "grey", "black", "half white", "one dot"])
def test_no_whole_stream_is_called_damaged(kind: str, sampling: str, optimised: bool) -> None:
    for width, height in ((256, 256), (512, 64), (700, 501), (16, 16)):
        pixels = np.full((height, width, 3), {"grey": 128, "black": 0}.get(kind, 255), np.uint8)
        if kind in ("texture", "half white"):
            pixels[: height if kind == "texture" else height // 2] = texture(width, height)[
                : height if kind == "texture" else height // 2
            ]
        elif kind == "noise":
            pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        elif kind == "one dot":
            pixels[3, 3] = 0
        for quality in (30, 85, 100):
            stream = imagecodecs.jpeg8_encode(pixels, level=quality, subsampling=sampling, optimize=optimised)
            assert judge(bytes(stream)) is Whole.YES, (width, height, quality)


def test_real_slides_lack_nothing(shared_data: Path) -> None:
    for path in sorted((shared_data / "slides").iterdir()):
        with Slide.open(path, mpp=0.5) as slide:
            width, height = slide.l0_size_px
            for y in range(0, height, 4096):
                for x in range(0, width, 4096):
                    box = Box(x, y, min(4096, width - x), min(4096, height - y))
                    assert slide.read(box, (box.width, box.height)).missing is None, (path.name, box)
