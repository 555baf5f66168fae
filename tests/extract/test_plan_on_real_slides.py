"""What is foretold of real slides, against what is then done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from marble.extract import extract_many, plan
from tests.extract.making import spec_of

SLIDES = ("CMU-1-Small-Region.svs", "atlas_lungSCC_HE3_20x.tiff")


@pytest.mark.slow
@pytest.mark.parametrize("name", SLIDES)
def test_tiles_and_bytes_are_foretold(
    name: str, shared_data: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Times too, which are told and not tested: `marble bench extract` compares them on a quiet machine."""
    path, spec = shared_data / "slides" / name, spec_of(5.0, 20.0, tile_px=256, encoders=("lite0",))
    foretold = plan([path], spec)
    done = extract_many([path], spec, tmp_path)
    assert done.ok, done.outcomes
    assert sum(foretold.tiles) == done.outcomes[0].tiles
    on_disk = sum(file.stat().st_size for file in done.store.iterdir())
    assert foretold.bytes == pytest.approx(on_disk, rel=0.25)
    assert foretold.each.slide_bytes == path.stat().st_size
    record_property("seconds_foretold", foretold.seconds)
    record_property("seconds_measured", done.seconds)
