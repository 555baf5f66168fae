"""Tissue found on pictures whose truth is known, and coverage against brute force."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from marble.slides.slide import Slide
from marble.slides.tissue import Tissue, TissueSpec, segment

from .conftest import Mask, Pixels, drop_tiles, write_tiff

WHITE, PINK, PURPLE = (243, 242, 244), (226, 150, 190), (90, 50, 130)
MPP = 8.0  # one mask pixel per picture pixel


def _glass(width: int = 400, height: int = 300, noise: float = 2.0) -> Pixels:
    rng = np.random.default_rng(0)
    return np.clip(np.array(WHITE) + rng.normal(0, noise, (height, width, 3)), 0, 255).astype(np.uint8)


def _paint_tissue(picture: Pixels, centre: tuple[int, int], radii: tuple[int, int]) -> Mask:
    """Pink with purple cells, and where it is."""
    where = np.zeros(picture.shape[:2], np.uint8)
    cv2.ellipse(where, centre, radii, 0, 0, 360, 1, -1)
    rng = np.random.default_rng(1)
    cells = rng.random(where.shape) < 0.3
    picture[where > 0] = PINK
    picture[(where > 0) & cells] = PURPLE
    return where > 0


def _segment(tmp_path: Path, picture: Pixels, spec: TissueSpec | None = None) -> Tissue:
    Image.fromarray(picture).save(tmp_path / "a.png")
    with Slide.open(tmp_path / "a.png", mpp=MPP) as slide:
        return segment(slide, spec)


def _overlap(found: Mask, truth: Mask) -> float:
    return float((found & truth).sum() / (found | truth).sum())


class TestSegment:
    def test_finds_tissue(self, tmp_path: Path) -> None:
        picture = _glass()
        truth = _paint_tissue(picture, (150, 140), (90, 60))
        tissue = _segment(tmp_path, picture)
        assert tissue.l0_per_px == 1.0
        assert _overlap(tissue.mask, truth) > 0.95

    def test_pale_tissue_beside_a_dark_tumour(self, tmp_path: Path) -> None:
        picture = _glass()
        truth = np.zeros(picture.shape[:2], bool)
        truth[50:250, 50:180] = True
        truth[50:250, 220:350] = True
        rng = np.random.default_rng(2)
        pale = np.clip(np.array((236, 214, 228)) + rng.normal(0, 9, (200, 130, 1)), 0, 255)
        dark = np.clip(np.array((80, 30, 120)) + rng.normal(0, 20, (200, 130, 1)), 0, 255)
        picture[50:250, 50:180], picture[50:250, 220:350] = pale, dark
        assert _overlap(_segment(tmp_path, picture).mask, truth) > 0.95

    @pytest.mark.parametrize("noise", [0.0, 2.0, 6.0])
    def test_a_blank_slide_is_empty(self, tmp_path: Path, noise: float) -> None:
        tissue = _segment(tmp_path, _glass(noise=noise))
        assert not tissue.mask.any()
        assert tissue.fraction == 0.0

    def test_a_slide_full_of_tissue(self, tmp_path: Path) -> None:
        picture = _glass()
        _paint_tissue(picture, (200, 150), (2000, 2000))
        assert _segment(tmp_path, picture).fraction > 0.98

    @pytest.mark.parametrize("ink", [(30, 60, 190), (20, 140, 60), (25, 25, 30), (30, 150, 160)])
    def test_ink_is_rejected(self, tmp_path: Path, ink: tuple[int, int, int]) -> None:
        picture = _glass()
        truth = _paint_tissue(picture, (130, 140), (90, 60))
        stroke = np.zeros(picture.shape[:2], np.uint8)
        cv2.line(stroke, (300, 20), (340, 280), 1, 14)
        picture[stroke > 0] = ink
        tissue = _segment(tmp_path, picture)
        assert _overlap(tissue.mask, truth) > 0.95
        assert tissue.measures["ink"] > 0.02
        kept = _segment(tmp_path, picture, TissueSpec(pen_marks=False, min_sharpness=0))
        if max(ink) - min(ink) > 60:
            assert kept.mask[stroke > 0].mean() > 0.9

    def test_a_blue_stain_is_not_ink(self, tmp_path: Path) -> None:
        picture = _glass()
        truth = _paint_tissue(picture, (200, 150), (150, 110))
        rng = np.random.default_rng(3)
        picture[truth] = np.clip(np.array((60, 90, 190)) + rng.normal(0, 25, (int(truth.sum()), 1)), 0, 255)
        assert _overlap(_segment(tmp_path, picture).mask, truth) > 0.9

    def test_specks_of_pigment_stay(self, tmp_path: Path) -> None:
        picture = _glass()
        truth = _paint_tissue(picture, (200, 150), (150, 110))
        picture[140:150, 180:190] = (20, 20, 22)
        assert _overlap(_segment(tmp_path, picture).mask, truth) > 0.95

    def test_a_dark_edge_is_rejected(self, tmp_path: Path) -> None:
        picture = _glass()
        truth = _paint_tissue(picture, (200, 160), (120, 90))
        rng = np.random.default_rng(4)
        picture[:30] = np.clip(np.linspace(10, 200, 30)[:, None, None] + rng.normal(0, 3, (30, 400, 3)), 0, 255)
        found = _segment(tmp_path, picture).mask
        assert not found[:30].any()
        assert _overlap(found, truth) > 0.95

    def test_out_of_focus_is_rejected(self, tmp_path: Path) -> None:
        picture = _glass(noise=0.5)
        sharp = _paint_tissue(picture, (100, 150), (70, 100))
        other = _glass(noise=0.5)
        blurred = _paint_tissue(other, (300, 150), (70, 100))
        other = np.asarray(cv2.GaussianBlur(other, (0, 0), 6), np.uint8)
        picture[:, 200:] = other[:, 200:]
        tissue = _segment(tmp_path, picture)
        assert tissue.mask[sharp].mean() > 0.95
        assert tissue.mask[blurred].mean() < 0.3
        assert tissue.measures["blurred"] > 0.1
        assert _segment(tmp_path, picture, TissueSpec(min_sharpness=0)).mask[blurred].mean() > 0.95

    def test_islands_and_holes(self, tmp_path: Path) -> None:
        picture = _glass()
        _paint_tissue(picture, (150, 150), (120, 120))
        picture[145:155, 145:155] = WHITE  # 100 px = 6,400 um2: filled
        picture[190:240, 130:180] = WHITE  # 2,500 px = 160,000 um2: stays
        picture[20:32, 350:362] = PURPLE  # 144 px = 9,216 um2: dropped
        found = _segment(tmp_path, picture, TissueSpec(min_sharpness=0)).mask
        assert found[150, 150]
        assert not found[215, 155]
        assert not found[:60, 330:].any()

    def test_is_deterministic(self, tmp_path: Path) -> None:
        picture = _glass()
        _paint_tissue(picture, (150, 140), (90, 60))
        first, second = _segment(tmp_path, picture), _segment(tmp_path, picture)
        np.testing.assert_array_equal(first.mask, second.mask)
        assert first.measures == second.measures

    def test_mask_pixels_are_whole_level_0_pixels(self, tmp_path: Path) -> None:
        picture = np.asarray(cv2.resize(_glass(401, 303), (401 * 4, 303 * 4)), np.uint8)
        with Slide.open(write_tiff(tmp_path / "a.tiff", [picture], mpp=2.1)) as slide:
            tissue = segment(slide)
        assert tissue.l0_per_px == 4.0
        assert tissue.mask.shape == (303, 401)

    def test_missing_tiles_inside_tissue_are_laid_on(self, tmp_path: Path) -> None:
        picture = _glass(512, 384)
        truth = _paint_tissue(picture, (200, 190), (170, 150))
        path = write_tiff(tmp_path / "a.tiff", [picture], mpp=MPP, tile=(64, 64))
        drop_tiles(path, [3 * 8 + 3, 7])  # one inside the tissue, one on glass
        with Slide.open(path) as slide:
            tissue = segment(slide)
        assert tissue.mask[192:256, 192:256].all()
        assert not tissue.mask[:64, 448:].any()
        assert _overlap(tissue.mask, truth) > 0.95
        assert tissue.measures["missing"] == pytest.approx(2 / 48)


class TestCoverage:
    @settings(max_examples=60, deadline=None)
    @given(
        seed=st.integers(0, 10_000),
        l0_per_px=st.sampled_from([1.0, 16.0, 4.0003, 31.73]),
        corner=st.tuples(st.floats(-40, 500), st.floats(-40, 500)),
        size=st.tuples(st.floats(0.5, 400), st.floats(0.5, 400)),
    )
    def test_against_brute_force(
        self, seed: int, l0_per_px: float, corner: tuple[float, float], size: tuple[float, float]
    ) -> None:
        mask = np.random.default_rng(seed).random((13, 17)) < 0.5
        (x, y), (width, height) = corner, size
        area = 0.0
        for row in range(13):
            for column in range(17):
                across = min(x + width, (column + 1) * l0_per_px) - max(x, column * l0_per_px)
                down = min(y + height, (row + 1) * l0_per_px) - max(y, row * l0_per_px)
                area += mask[row, column] * max(across, 0) * max(down, 0)
        found = Tissue(mask, l0_per_px).coverage([(x, y, width, height)])
        assert found[0] == pytest.approx(area / (width * height), abs=1e-9)

    def test_many_at_once(self) -> None:
        tissue = Tissue(np.eye(4, dtype=bool), 10.0)
        boxes = [(0, 0, 40, 40), (0, 0, 10, 10), (10, 0, 10, 10), (5, 5, 10, 10), (-40, 0, 40, 40), (35, 35, 10, 10)]
        np.testing.assert_allclose(tissue.coverage(boxes), [0.25, 1, 0, 0.5, 0, 0.25])
        assert tissue.coverage(np.empty((0, 4))).shape == (0,)
