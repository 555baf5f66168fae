"""What a slide file says of its patient stays in the file: nothing of it in bags, records, previews or output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tifffile

from marble.slides.slide import Box, Slide
from marble.synthetic.slides import write_slide
from tests.cli.running import marble
from tests.extract.test_any_folder import SETTINGS

CANARY = "Kanarienvogel"


def test_descriptions_labels_and_folders_reach_no_artefact(tmp_path: Path) -> None:
    """Canaries in descriptions, an associated picture, tags and folder names, on slides that work and that fail."""
    drawn = write_slide(tmp_path / "drawn.tiff", (512, 384), mpp=0.5, pieces=1, quality=None)
    with Slide.open(drawn) as slide:
        pixels = slide.read(Box(0, 0, 512, 384), (512, 384)).pixels
    folder = tmp_path / CANARY
    folder.mkdir()
    label = np.full((64, 64, 3), 7, np.uint8)
    with tifffile.TiffWriter(folder / "s1.tiff") as tiff:
        about = f"patient {CANARY} label barcode={CANARY}"
        tiff.write(
            pixels, tile=(256, 256), compression="zlib", photometric="rgb", metadata=None, description=about,
            resolution=(2e4, 2e4), resolutionunit="CENTIMETER", software=CANARY, extratags=[(315, 2, 0, CANARY, True)],
        )  # fmt: skip
        tiff.write(label, photometric="rgb", metadata=None, description=f"label {CANARY}", subfiletype=1)
    (folder / "s2.svs").write_bytes(f"{CANARY} is no slide".encode())
    (folder / "s3.tiff").write_bytes((folder / "s1.tiff").read_bytes()[:3000])
    ended = marble("extract", folder, "--store", tmp_path / "bags", *SETTINGS)
    assert ended.code == 1
    assert "s1: ok" in ended.output
    assert marble("tile", folder / "s1.tiff", "--out", tmp_path / "previews", "--magnifications", "5,20").code in (0, 1)
    written = [path for root in ("bags", "previews") for path in (tmp_path / root).rglob("*") if path.is_file()]
    assert len(written) >= 5
    for path in written:
        assert CANARY.encode() not in path.read_bytes(), path
        assert CANARY not in str(path.relative_to(tmp_path))
