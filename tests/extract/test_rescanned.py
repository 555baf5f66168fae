"""A drawn slide, compressed again, shifted and put into other containers: found by its bags; another slide is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from marble.bags import BagStore
from marble.bags.lookalikes import THRESHOLD, Look, agreement, lookalikes
from marble.extract import ExtractSpec, SlideFacts, extract_slide, store_for
from marble.slides.slide import Box, Slide
from marble.synthetic.slides import write_slide

SIZE = (3072, 2304)
SPEC = ExtractSpec.parse({"pyramid": {"magnifications": [5.0], "tile_px": 96}, "encoders": ["lite0"]})
#: (JPEG quality, shift in level-0 pixels) of the copies; a tile is 384 of them
COPIES = [(95, 0), (60, 0), (30, 0), (75, 8), (75, 32)]


def write_copy(path: Path, pixels: NDArray[np.uint8], quality: int, shift: int) -> None:
    moved = np.ascontiguousarray(np.roll(pixels, (shift, shift), (0, 1)))
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(
            moved, tile=(256, 256), compression="jpeg", compressionargs={"level": quality}, photometric="rgb",
            metadata=None,
        )  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BagStore:
    root = tmp_path_factory.mktemp("rescanned")
    for seed in range(3):
        write_slide(root / f"slide{seed}.tiff", SIZE, mpp=0.5, pieces=3, quality=None, seed=seed)
    with Slide.open(root / "slide0.tiff") as slide:
        pixels = slide.read(Box(0, 0, *SIZE), SIZE).pixels
    for quality, shift in COPIES:
        write_copy(root / f"copy {quality} {shift}.tiff", pixels, quality, shift)
    Image.fromarray(pixels).save(root / "copy.png")
    for path in sorted(root.iterdir()):
        if path.suffix in (".tiff", ".png"):
            record = extract_slide(path, SPEC, root / "bags", facts=SlideFacts(mpp=0.5))
            assert record.status == "ok", record.reason
    return store_for(root / "bags", SPEC)


def test_every_copy_is_found_and_no_other_slide(store: BagStore) -> None:
    slides = [record.slide_id for record in store.records()]
    found = {frozenset((pair.one, pair.other)) for pair in lookalikes(store, slides)}
    copies = {name for name in slides if name.startswith("copy")}
    assert len(copies) == len(COPIES) + 1
    assert {frozenset(("slide0", name)) for name in copies} <= found
    assert all(pair <= copies | {"slide0"} for pair in found)


def test_the_threshold_lies_between(store: BagStore) -> None:
    looks = {record.slide_id: Look.of(store.load(record.slide_id)) for record in store.records()}
    shares = {name: agreement(looks["slide0"], look) for name, look in looks.items() if look and looks["slide0"]}
    assert min(share for name, share in shares.items() if name.startswith("copy")) > THRESHOLD
    assert max(shares["slide1"], shares["slide2"]) < THRESHOLD - 0.1
