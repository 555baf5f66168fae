"""Made-up slides: readable in every format, the same for the same seed, with everything at its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile

from marble.errors import InputError
from marble.files import sha256_file
from marble.slides.lattice import PyramidSpec, lay
from marble.slides.slide import Box, Slide
from marble.slides.tissue import segment
from marble.synthetic.slides import Format, Planted, mark_pixels, write_slide

MARK = Planted("mark", (768, 512, 256, 256))
SIZE = (2300, 1701)
FORMATS: dict[Format, tuple[str, str, int]] = {
    "generic-tiff": ("generic-tiff", "tiff resolution tags", 2),
    "svs": ("aperio", "openslide.mpp-x", 2),
    "ome-tiff": ("ome-tiff", "OME PhysicalSizeX", 2),
    "single-level": ("generic-tiff", "tiff resolution tags", 1),
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("quality", [None, 85])
def test_formats(tmp_path: Path, layout: Format, quality: int | None) -> None:
    path = write_slide(tmp_path / "a.tif", SIZE, mpp=0.5, seed=4, format=layout, planted=[MARK], quality=quality)
    vendor, origin, planes = FORMATS[layout]
    with Slide.open(path) as slide:
        assert (slide.vendor, slide.mpp_origin, slide.l0_size_px) == (vendor, origin, SIZE)
        assert slide.native_mpps == pytest.approx((0.5, 2.0)[:planes])
        mark = slide.read(Box(*MARK.l0_box), (256, 256)).pixels
        expected = mark_pixels(256, 256, seed=4)
        if quality is None:
            np.testing.assert_array_equal(mark, expected)
            tile = slide.read(Box(0, 0, 2048, 1536), (512, 384)).pixels
            own = slide.read(Box(0, 0, 2048, 1536), (2048, 1536)).pixels.reshape(384, 4, 512, 4, 3).mean((1, 3))
            assert np.abs(tile - own).max() <= 0.5  # coarse planes are means of the finest
        else:
            assert np.corrcoef(mark.ravel(), expected.ravel())[0, 1] > 0.8
        assert segment(slide).fraction > 0.3


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    paths = [write_slide(tmp_path / f"{i}.tif", (700, 600), seed=seed) for i, seed in enumerate((1, 1, 2))]
    digests = [sha256_file(path) for path in paths]
    assert digests[0] == digests[1] != digests[2]


def test_an_empty_glass(tmp_path: Path) -> None:
    path = write_slide(tmp_path / "a.tif", (1200, 900), pieces=0)
    with Slide.open(path) as slide:
        assert segment(slide).fraction == 0.0
        assert slide.thumbnail(100).min() > 230


@pytest.mark.parametrize("layout", ["generic-tiff", "svs", "ome-tiff"])
@pytest.mark.parametrize("corner", [(600, 500), (611, 497), (1000, 650)])
def test_a_lesion_is_where_it_was_planted(tmp_path: Path, layout: Format, corner: tuple[int, int]) -> None:
    """The darkest tile of every level is the one that holds the lesion's centre, or its neighbour."""
    box = (*corner, 640, 512)
    path = write_slide(tmp_path / "a.tif", SIZE, mpp=0.5, seed=7, format=layout, planted=[Planted("lesion", box)])
    with Slide.open(path) as slide:
        pyramid = lay(slide.l0_size_px, slide.mpp, segment(slide), PyramidSpec(mpps=(2.0, 0.5), tile_px=128))
        for k in range(pyramid.depth):
            boxes = pyramid.boxes(k)
            red = [slide.read(Box(*tile), (128, 128)).pixels[..., 0].mean() for tile in boxes.tolist()]
            darkest = boxes[int(np.argmin(red))]
            centre = np.array((box[0] + box[2] / 2, box[1] + box[3] / 2))
            reach = np.maximum(darkest[2:], (box[2], box[3]))  # a fine tile may be anywhere inside the lesion
            assert (np.abs(darkest[:2] + darkest[2:] / 2 - centre) <= reach / 2).all()


def test_the_mark_has_no_symmetry() -> None:
    mark = mark_pixels(64, 64)
    others = [np.rot90(mark, i) for i in (1, 2, 3)] + [mark[::-1], mark[:, ::-1], mark.transpose(1, 0, 2)]
    assert not any(np.array_equal(mark, other) for other in others)


def test_tile_size_must_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="multiple of 64"):
        write_slide(tmp_path / "a.tif", (300, 300), tile_px=100)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_slide_of_20000_px(tmp_path: Path) -> None:
    path = write_slide(tmp_path / "a.tif", (20_000, 20_000), mpp=0.5)
    with tifffile.TiffFile(path) as tiff:
        assert [page.shape[:2] for page in tiff.pages] == [(20_000, 20_000), (5_000, 5_000), (1_250, 1_250)]
    with Slide.open(path) as slide:
        assert segment(slide).fraction > 0.3
