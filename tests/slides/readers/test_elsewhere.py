"""A slide read in another process is the same slide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from marble.errors import SlideError
from marble.slides.readers.elsewhere import reading_elsewhere
from marble.slides.slide import Box, Slide
from marble.synthetic.slides import write_slide


def test_pixels_and_errors_are_those_of_this_process(tmp_path: Path) -> None:
    path = write_slide(tmp_path / "a.tiff", (700, 500), mpp=0.5, seed=3)
    cut = write_slide(tmp_path / "b.tiff", (700, 500), mpp=0.5, seed=4)
    cut.write_bytes(cut.read_bytes()[:-2000])
    (tmp_path / "c.svs").write_bytes(b"no slide")
    with reading_elsewhere() as desk:
        for file in (path, cut, path):
            here, there = _everything(file, None), _everything(file, desk)
            assert here == there
        with pytest.raises(SlideError) as here_said:
            Slide.open(tmp_path / "c.svs")
        with pytest.raises(SlideError) as there_said:
            Slide.open(tmp_path / "c.svs", desk=desk)
        assert str(there_said.value) == str(here_said.value)


def _everything(path: Path, desk: object) -> object:
    """What a slide says and shows, or why it does not."""
    try:
        with Slide.open(path, desk=desk) as slide:  # type: ignore[arg-type]
            region = slide.read(Box(-20, 100, 300, 200), (150, 100))
            missing = None if region.missing is None else region.missing.tolist()
            shown = np.asarray(slide.thumbnail(256)).tobytes(), region.pixels.tobytes(), missing
            return slide.l0_size_px, slide.mpp, slide.mpp_origin, slide.vendor, slide.native_mpps, shown
    except SlideError as error:
        return str(error)
