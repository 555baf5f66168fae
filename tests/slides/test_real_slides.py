"""Real slides of five kinds: each opens and is laid, or is refused for the right reason; and the preview shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from marble.errors import SlideError
from marble.slides.lattice import PyramidSpec, lay
from marble.slides.preview import draw_preview
from marble.slides.slide import Slide
from marble.slides.tissue import segment

# name: pixel size, where it comes from, magnifications asked, tissue fraction as seen by eye (roughly).
READABLE: dict[str, tuple[float, str, tuple[float, ...], float]] = {
    "CMU-1-Small-Region.svs": (0.499, "openslide.mpp-x", (5, 20), 0.38),
    "atlas_lungSCC_HE3_20x.tiff": (0.526036, "tiff resolution tags", (5, 20), 0.20),
    "atlas_lungSCC_crop2048_20x.tiff": (0.526036, "tiff resolution tags", (5, 20), 0.69),
    "eosinophilic-esophagitis__HE.tiff": (1.0112, "tiff resolution tags", (2.5, 10), 0.074),
    "lung-squamous-cell-carcinoma__HE1.tiff": (1.052072, "tiff resolution tags", (2.5, 10), 0.12),
    "lung-squamous-cell-carcinoma__HE2.tiff": (1.052072, "tiff resolution tags", (2.5, 10), 0.10),
    "lung-squamous-cell-carcinoma__HE4.tiff": (1.052072, "tiff resolution tags", (2.5, 10), 0.15),
    "pancreas-adenosquamous__HE.tiff": (1.053248, "tiff resolution tags", (1.25, 2.5, 10), 0.20),
    "wsi2dcm_jpeg.dcm": (16.783, "openslide.mpp-x", (0.15, 0.6), 0.79),
}
REFUSED = {
    "TCGA-CR-7395-01A-01-TS1.svs": "no pixel size",
    "atlas_tubadenoma_HE_nompp.tiff": "no pixel size",
    "camelyon_jpeg.dcm": r"pixel size 28\.969 um .* outside",
}


def test_every_slide_is_accounted_for(shared_data: Path) -> None:
    assert {path.name for path in (shared_data / "slides").iterdir()} == READABLE.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", READABLE)
def test_readable(shared_data: Path, name: str) -> None:
    mpp, origin, magnifications, fraction = READABLE[name]
    with Slide.open(shared_data / "slides" / name) as slide:
        assert slide.mpp == pytest.approx(mpp)
        assert slide.mpp_origin == origin
        tissue = segment(slide)
        assert tissue.fraction == pytest.approx(fraction, rel=0.15)
        pyramid = lay(slide.l0_size_px, slide.mpp, tissue, PyramidSpec(magnifications=magnifications), name=name)
        picture = draw_preview(slide, tissue, pyramid, max_px=400)
    assert pyramid.mpps[-1] == slide.mpp  # all lie within 15 % of what is asked
    assert max(picture.shape[:2]) >= 400
    assert picture.dtype == np.uint8


@pytest.mark.parametrize("name", REFUSED)
def test_refused_until_the_pixel_size_is_given(shared_data: Path, name: str) -> None:
    path = shared_data / "slides" / name
    with pytest.raises(SlideError, match=REFUSED[name]) as caught:
        Slide.open(path)
    assert name in str(caught.value)
    assert "--mpp-csv" in str(caught.value)
    with Slide.open(path, mpp=1.0) as slide:
        assert slide.mpp_origin == "given by the user"
        assert segment(slide).fraction > 0.05


def test_40x_asked_of_a_20x_scan(shared_data: Path) -> None:
    with Slide.open(shared_data / "slides" / "CMU-1-Small-Region.svs") as slide:
        tissue = segment(slide)
        with pytest.raises(SlideError, match=r"CMU-1-Small-Region\.svs: 40x .* about 20x"):
            lay(slide.l0_size_px, slide.mpp, tissue, PyramidSpec(magnifications=(10, 40)), name=slide.path.name)


def test_the_dark_coverslip_edge_is_not_tissue(shared_data: Path) -> None:
    with Slide.open(shared_data / "slides" / "eosinophilic-esophagitis__HE.tiff") as slide:
        tissue = segment(slide)
    top = tissue.mask[:8]  # the edge is darkest here, from the left to two thirds of the slide
    assert top[:, 300:1500].mean() < 0.01
