"""JPEG tiles decoded directly: OpenSlide's pixels, and OpenSlide's verdict on damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import cv2
import imagecodecs
import numpy as np
import pytest
import tifffile

from marble.slides.readers import segments
from marble.slides.readers.jpeg_tiles import JpegTilePlanes, jpeg_tiles
from marble.slides.readers.openslide import OpenSlidePlanes
from marble.slides.readers.planes import Planes
from marble.slides.slide import Box, Slide
from marble.synthetic.slides import write_slide
from tests.slides.conftest import Pixels, drop_tiles, write_tiff

SIDE = 256
Noise = Callable[..., Pixels]


@contextmanager
def _both(path: Path) -> Iterator[tuple[JpegTilePlanes, OpenSlidePlanes]]:
    """The direct reader, and an OpenSlide of its own to compare with."""
    direct = jpeg_tiles(path, OpenSlidePlanes(path))
    assert direct is not None
    reference = OpenSlidePlanes(path)
    try:
        yield direct, reference
    finally:
        direct.close()
        reference.close()


def _decoded_by_tifffile(path: Path, size: tuple[int, int]) -> Pixels:
    with tifffile.TiffFile(path) as tiff:
        pages: list[Any] = list(tiff.pages)
        page = next(page for page in pages if page.is_tiled and (page.imagewidth, page.imagelength) == size)
        return np.asarray(page.asarray(), np.uint8)


def _smooth(noise: Noise, seed: int = 0) -> Pixels:
    blurred = cv2.GaussianBlur(noise(SIDE, SIDE, seed), (0, 0), 3).astype(np.int16)
    return np.clip((blurred - 128) * 4 + 128, 0, 255).astype(np.uint8)


def _encoded(pixels: Pixels, subsampling: str = "444", colours: str = "YCBCR") -> bytes:
    return bytes(
        imagecodecs.jpeg8_encode(pixels, level=85, colorspace="RGB", outcolorspace=colours, subsampling=subsampling)
    )


def _write_streams(path: Path, streams: list[bytes], photometric: Literal["rgb", "ycbcr"] = "ycbcr") -> Path:
    """A row of tiles with these very bytes."""
    tifffile.imwrite(
        path,
        iter(streams),
        shape=(SIDE, SIDE * len(streams), 3),
        dtype=np.uint8,
        tile=(SIDE, SIDE),
        compression="jpeg",
        compressionargs={"outcolorspace": photometric},  # else it writes "ycbcr" for both
        photometric=photometric,
        metadata=None,
    )
    with tifffile.TiffFile(path) as tiff:
        first: Any = tiff.pages[0]
        assert first.photometric.name == photometric.upper()
    return path


def _same(direct: Planes, reference: Planes, plane: int, box: tuple[int, int, int, int]) -> bool:
    """Compares pixels and mask; returns whether something is missing."""
    (ours, our_hole), (theirs, their_hole) = direct.read(plane, *box), reference.read(plane, *box)
    np.testing.assert_array_equal(ours, theirs)
    assert (our_hole is None) == (their_hole is None)
    if our_hole is not None and their_hole is not None:
        np.testing.assert_array_equal(our_hole, their_hole)
    return our_hole is not None


class TestPixels:
    @pytest.mark.parametrize("layout", ["generic-tiff", "svs"])
    def test_whole_downsamples_are_openslides_pixels(self, tmp_path: Path, layout: Any) -> None:
        path = write_slide(tmp_path / "a.tiff", (2048, 1536), format=layout, tile_px=256)
        rng = np.random.default_rng(0)
        with _both(path) as (direct, reference):
            assert len(direct.sizes) > 1
            assert (direct.vendor, direct.sizes, direct.clues) == (reference.vendor, reference.sizes, reference.clues)
            for plane, (width, height) in enumerate(direct.sizes):
                assert not _same(direct, reference, plane, (0, 0, width, height))
                for _ in range(5):
                    x, y = int(rng.integers(width - 1)), int(rng.integers(height - 1))
                    _same(direct, reference, plane, (x, y, min(300, width - x), min(200, height - y)))

    @pytest.mark.parametrize("layout", ["generic-tiff", "svs"])
    def test_odd_planes_are_the_stored_pixels(self, tmp_path: Path, layout: Any) -> None:
        """OpenSlide shifts these by parts of a pixel, so the stored pictures are the truth."""
        path = write_slide(tmp_path / "a.tiff", (2051, 1543), format=layout, tile_px=256)
        with _both(path) as (direct, reference):
            for plane, (width, height) in enumerate(direct.sizes):
                stored = _decoded_by_tifffile(path, (width, height))
                np.testing.assert_array_equal(direct.read(plane, 0, 0, width, height)[0], stored)
                x, y = width // 2, height // 2
                np.testing.assert_array_equal(direct.read(plane, x, y, 100, 90)[0], stored[y : y + 90, x : x + 100])
            _same(direct, reference, 0, (0, 0, 2051, 1543))

    @pytest.mark.parametrize("subsampling", ["444", "422", "420"])
    @pytest.mark.parametrize("stream", ["RGB", "YCBCR"])
    @pytest.mark.parametrize("photometric", ["rgb", "ycbcr"])
    def test_colours_are_what_the_file_says(
        self, tmp_path: Path, noise: Noise, subsampling: str, stream: str, photometric: Any
    ) -> None:
        tiles = [_encoded(_smooth(noise, seed), subsampling, stream) for seed in range(3)]
        path = _write_streams(tmp_path / "a.tiff", tiles, photometric)
        with _both(path) as (direct, reference):
            assert not _same(direct, reference, 0, (0, 0, 3 * SIDE, SIDE))

    @pytest.mark.parametrize(
        "name",
        [
            "CMU-1-Small-Region.svs",
            "atlas_lungSCC_crop2048_20x.tiff",
            "atlas_lungSCC_HE3_20x.tiff",
            "eosinophilic-esophagitis__HE.tiff",
            "pancreas-adenosquamous__HE.tiff",
        ],
    )
    def test_real_slides(self, shared_data: Path, name: str) -> None:
        path = shared_data / "slides" / name
        with _both(path) as (direct, reference):
            width, height = direct.sizes[0]
            for x, y in ((0, 0), (width // 2 + 3, height // 2 - 7), (width - 700, height - 500)):
                assert not _same(direct, reference, 0, (x, y, 700, 500))
            width, height = direct.sizes[-1]
            stored = _decoded_by_tifffile(path, (width, height))
            np.testing.assert_array_equal(direct.read(len(direct.sizes) - 1, 0, 0, width, height)[0], stored)


class TestDamage:
    def test_early_ends_are_noticed_as_by_openslide(self, tmp_path: Path, noise: Noise) -> None:
        """Every kind of damage behind the header, where each block is 8 rows high: the same verdict on every tile."""
        rng = np.random.default_rng(3)
        streams = []
        for i in range(60):
            stream = bytearray(_encoded(_smooth(noise, i % 4), ("444", "422")[i % 2]))
            at = int(rng.integers(stream.index(b"\xff\xda") + 14, len(stream) - 100))
            length = (1, 4, 40)[i % 3]
            stream[at : at + length] = rng.bytes(length)
            streams.append(bytes(stream))
        path = _write_streams(tmp_path / "a.tiff", streams)
        with _both(path) as (direct, reference):
            lost = [_same(direct, reference, 0, (i * SIDE, 0, SIDE, SIDE)) for i in range(len(streams))]
        assert 5 < sum(lost) < 55

    @pytest.mark.parametrize("subsampling", ["444", "420"])
    def test_truncated_and_blanked_tiles(self, tmp_path: Path, noise: Noise, subsampling: str) -> None:
        good = _encoded(_smooth(noise), subsampling)
        half = len(good) // 2
        streams = [good, good[:half], good[:half] + bytes(len(good) - half), good[:-2], good + bytes(7), good[:30]]
        streams.append(good[:half] + bytes(half // 2) + good[half + half // 2 :])
        path = _write_streams(tmp_path / "a.tiff", streams)
        with _both(path) as (direct, reference):
            lost = [_same(direct, reference, 0, (i * SIDE, 0, SIDE, SIDE)) for i in range(len(streams))]
        assert lost[:3] == [False, True, True]
        assert lost[5:] == [True, True]

    def test_unusual_tiles_are_left_to_openslide(self, tmp_path: Path, noise: Noise) -> None:
        pixels = _smooth(noise)
        good = _encoded(pixels)
        bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
        kinds = [[cv2.IMWRITE_JPEG_PROGRESSIVE, 1], [cv2.IMWRITE_JPEG_RST_INTERVAL, 4]]
        unusual = [cv2.imencode(".jpg", bgr, kind)[1].tobytes() for kind in kinds]
        smaller = _encoded(np.ascontiguousarray(pixels[:128]))
        grey = cv2.imencode(".jpg", pixels[..., 0])[1].tobytes()
        grey_tile = _encoded(np.full_like(pixels, 128))  # looks like a stream without data, and is none
        tables = good.index(b"\xff\xdb")
        streams = [good, *unusual, grey_tile, smaller, grey, good[:tables] + b"\0\0" + good[tables:]]
        path = _write_streams(tmp_path / "a.tiff", streams)
        with _both(path) as (direct, reference):
            lost = [_same(direct, reference, 0, (i * SIDE, 0, SIDE, SIDE)) for i in range(len(streams))]
        assert lost == [False, False, False, False, True, True, True]

    def test_tiles_without_bytes(self, tmp_path: Path, noise: Noise) -> None:
        path = write_tiff(tmp_path / "a.tiff", [noise(700, 500)], tile=(128, 128), compression="jpeg")
        drop_tiles(path, [0, 8, 23])
        with _both(path) as (direct, reference):
            assert _same(direct, reference, 0, (0, 0, 700, 500))
            assert _same(direct, reference, 0, (100, 100, 333, 222))

    def test_aperio_with_tiles_without_bytes_is_left_to_openslide(self, tmp_path: Path) -> None:
        path = write_slide(tmp_path / "a.svs", (1024, 1024), format="svs")
        with _both(path):
            pass
        drop_tiles(path, [3])
        assert _is_left_to_openslide(path)


class TestChoice:
    def test_the_reader_uses_it(self, tmp_path: Path) -> None:
        path = write_slide(tmp_path / "a.svs", (1024, 1024), format="svs")
        with Slide.open(path) as slide:
            assert isinstance(slide._planes, JpegTilePlanes)

    def test_other_tiles_are_left_to_openslide(self, tmp_path: Path, noise: Noise) -> None:
        planes = [noise(1024, 768), noise(256, 192)]
        assert _is_left_to_openslide(write_tiff(tmp_path / "lossless.tiff", planes))
        assert _is_left_to_openslide(write_tiff(tmp_path / "twice.tiff", [planes[0]] * 2, compression="jpeg"))
        with _both(write_tiff(tmp_path / "jpeg.tiff", planes, compression="jpeg")) as (direct, _):
            assert len(direct.sizes) == 2

    @pytest.mark.parametrize("name", ["TCGA-CR-7395-01A-01-TS1.svs", "wsi2dcm_jpeg.dcm"])
    def test_other_formats_are_left_to_openslide(self, shared_data: Path, name: str) -> None:
        assert _is_left_to_openslide(shared_data / "slides" / name)


def test_the_cache_is_bounded_and_shared_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "CACHE_BYTES", 4 * SIDE * SIDE * 3)
    path = write_slide(tmp_path / "a.tiff", (1536, 1536), tile_px=SIDE)
    boxes = [Box(x, y, 200, 200) for y in range(0, 1300, 150) for x in range(0, 1300, 150)]
    with Slide.open(path) as slide:
        whole = slide.read(Box(0, 0, 1536, 1536), (1536, 1536)).pixels
        with ThreadPoolExecutor(8) as pool:
            regions = list(pool.map(lambda box: slide.read(box, (200, 200)), boxes))
        assert isinstance(slide._planes, JpegTilePlanes)
        kept = slide._planes._segments._cache.values()
        assert sum(tile.nbytes for tile in kept) == slide._planes._segments._cache.currsize <= segments.CACHE_BYTES
    for box, region in zip(boxes, regions, strict=True):
        np.testing.assert_array_equal(region.pixels, whole[box.y : box.y + 200, box.x : box.x + 200])


def test_closing_gives_the_descriptors_back(tmp_path: Path) -> None:
    path = write_slide(tmp_path / "a.tiff", (1024, 1024))

    def open_here() -> int:
        links = Path("/proc/self/fd").iterdir()
        return sum(link.exists() and link.resolve() == path.resolve() for link in links)

    with Slide.open(path) as slide:
        slide.read(Box(0, 0, 512, 512), (512, 512))
        assert open_here() >= 1
    assert open_here() == 0


def _is_left_to_openslide(path: Path) -> bool:
    known = OpenSlidePlanes(path)
    try:
        return jpeg_tiles(path, known) is None
    finally:
        known.close()
