"""How tiles look: blur, folds, ink and edges are found where they were put, and left out only if asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from marble.extract import Machine, extract_many, store_for
from marble.extract.preview import write_preview
from marble.slides.lattice import PyramidSpec
from marble.slides.quality import QualitySpec, from_record, measure, outside
from marble.slides.slide import Box, Slide
from marble.synthetic.slides import write_slide
from tests.extract.making import spec_of
from tests.slides.conftest import Pixels, drop_tiles, write_tiff

SIZE = (1536, 1024)


@pytest.fixture(scope="module")
def tissue_pixels(tmp_path_factory: pytest.TempPathFactory) -> Pixels:
    """(h, w, 3) a drawn slide at 1 um/px."""
    path = write_slide(tmp_path_factory.mktemp("drawn") / "a.tiff", SIZE, mpp=1.0, seed=3, pieces=2, quality=None)
    with Slide.open(path) as slide:
        return slide.read(Box(0, 0, *SIZE), SIZE).pixels


def blurred_right_half(pixels: Pixels) -> Pixels:
    soft = cv2.GaussianBlur(pixels, (0, 0), 8.0)
    half = pixels.shape[1] // 2
    return np.concatenate((pixels[:, :half], soft[:, half:]), axis=1).astype(np.uint8)


def test_a_region_blurred_by_eight_pixels_is_left_out_and_nothing_else(tissue_pixels: Pixels, tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "half.tiff", [blurred_right_half(tissue_pixels)], mpp=1.0)
    plain = spec_of(2.5, 10, tile_px=64)
    strict = spec_of(2.5, 10, tile_px=64, quality=QualitySpec(min_sharpness=0.1))
    for spec in (plain, strict):
        assert extract_many([path], spec, tmp_path / "bags", machine=Machine(threads=1)).ok
    stores = [store_for(tmp_path / "bags", spec) for spec in (plain, strict)]
    every, kept = (store.load("half") for store in stores)
    half = SIZE[0] // 2 // 64
    columns = every.finest.cells[:, 1]
    is_blurred, is_sharp = columns > half, columns < half - 1  # whole tiles beyond the seam
    looks = from_record(stores[0].record("half").details["quality"])
    assert looks.shape == (len(every.finest), 4)
    assert looks[is_blurred.numpy(), 0].max() < 0.1 < looks[is_sharp.numpy(), 0].min()
    assert int(is_blurred.sum()) > 10
    left = {tuple(cell) for cell in kept.finest.cells.tolist()}
    assert not any(column > half for _, column in left)
    assert {tuple(cell) for cell in every.finest.cells[is_sharp].tolist()} <= left
    rejected = stores[1].record("half").details["quality"]["rejected"]
    assert rejected == len(every.finest) - len(kept.finest)
    assert len(kept.levels[0]) == len(every.levels[0])  # coarse tiles stay: only the finest are judged


def test_the_preview_counts_what_would_be_left_out(tissue_pixels: Pixels, tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "half.tiff", [blurred_right_half(tissue_pixels)], mpp=1.0)
    spec = PyramidSpec(magnifications=(2.5, 10), tile_px=64)
    sharp = write_preview(path, spec, tmp_path / "a")
    strict = write_preview(path, spec, tmp_path / "b", quality=QualitySpec(min_sharpness=0.1))
    assert sharp.left_out == 0 < strict.left_out < strict.tiles[-1]
    assert sharp.picture.read_bytes() != strict.picture.read_bytes()


def test_the_preview_takes_no_tile_without_pixels_for_a_blurred_one(
    tmp_path: Path, noise: Callable[..., Pixels]
) -> None:
    path = write_tiff(tmp_path / "a.tiff", [noise(512, 512)], mpp=1.0, tile=(128, 128))
    drop_tiles(path, [5, 6])
    spec, quality = PyramidSpec(magnifications=(10,), tile_px=64, coverage=(0,)), QualitySpec(min_sharpness=0.1)
    seen = write_preview(path, spec, tmp_path, quality=quality)
    assert (seen.tiles, seen.left_out) == ((64,), 0)


def test_ink_and_folds_are_measured_where_they_are(tissue_pixels: Pixels) -> None:
    tile = tissue_pixels[300:556, 300:556].copy()
    _, fold, pen = measure(tile, 1.0)
    assert max(fold, pen) < 0.05
    inked = tile.copy()
    inked[:128] = (20, 90, 200)
    assert measure(inked, 1.0)[2] == pytest.approx(0.5, abs=0.03)
    folded = tile.copy()
    folded[:, :64] = (90, 20, 70)
    assert measure(folded, 1.0)[1] == pytest.approx(0.25, abs=0.03)


def test_blur_is_seen_on_real_tissue(shared_data: Path) -> None:
    """CMU-1 small region: 0.499 um/px."""
    with Slide.open(shared_data / "slides" / "CMU-1-Small-Region.svs") as slide:
        width, height = slide.l0_size_px
        pixels = slide.read(Box(0, 0, width, height), (width // 2, height // 2)).pixels
    soft = cv2.GaussianBlur(pixels, (0, 0), 8.0)
    sharp, blurred = [], []
    for y in range(0, pixels.shape[0] - 256, 256):
        for x in range(0, pixels.shape[1] - 256, 256):
            part = np.s_[y : y + 256, x : x + 256]
            if pixels[part].std() > 20:
                sharp.append(measure(pixels[part], 1.0)[0])
                blurred.append(measure(np.asarray(soft[part], np.uint8), 1.0)[0])
    assert len(sharp) > 5
    assert max(blurred) < 0.1 < min(sharp)


def test_how_much_of_a_tile_lies_outside() -> None:
    boxes = np.array([[0, 0, 10, 10], [95, 0, 10, 10], [95, 45, 10, 10], [200, 0, 10, 10]])
    assert outside(boxes, (100, 50)).tolist() == [0.0, 0.5, 0.75, 1.0]
    assert QualitySpec(max_edge=0.5).keeps(np.array([[1, 0, 0, 0.5], [1, 0, 0, 0.6]], np.float32)).tolist() == [
        True,
        False,
    ]
