"""The preview: outlines on the tissue, boxes where the lattice is, a legend that counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from marble.slides.lattice import PyramidSpec, lay
from marble.slides.preview import draw_preview
from marble.slides.slide import Slide
from marble.slides.tissue import Tissue


def test_lines_lie_where_the_lattice_is(tmp_path: Path) -> None:
    Image.new("RGB", (512, 512), "white").save(tmp_path / "a.png")
    mask = np.zeros((8, 8), bool)
    mask[2:6, 2:6] = True  # level-0 pixels 128 to 384
    tissue = Tissue(mask, 64.0)
    with Slide.open(tmp_path / "a.png", mpp=1.0) as slide:
        pyramid = lay(
            slide.l0_size_px, slide.mpp, tissue, PyramidSpec(mpps=(2.0, 1.0), tile_px=64, coverage=(0.9, 0.9))
        )
        picture = draw_preview(slide, tissue, pyramid, max_px=512)
        bare = draw_preview(slide, tissue, None, max_px=512)
    assert pyramid.boxes(0).tolist() == [[x, y, 128, 128] for y in (128, 256) for x in (128, 256)]
    # The coarse line shows inside; on the rim the outline lies over it.
    assert (picture[150, 256] == (213, 94, 0)).all()
    assert (picture[150, 192] == (0, 114, 178)).all()  # fine
    assert picture[150, 128].max() < 120  # outline
    assert (picture[150, 100] == 255).all()
    assert (bare[150, 256] == 255).all()
    assert picture.shape[0] - bare.shape[0] == 60  # two rows of legend more
