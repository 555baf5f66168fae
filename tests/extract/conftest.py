"""Small made-up slides, written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from marble.synthetic.slides import write_slide

SIZE_PX = (2048, 1536)
MPP = 0.5


@pytest.fixture(scope="session")
def slide_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pyramid of two planes (0.5 and 2 um/px), lossless, with three pieces of tissue."""
    return write_slide(tmp_path_factory.mktemp("slide") / "one.tiff", SIZE_PX, mpp=MPP, quality=None)


@pytest.fixture(scope="session")
def some_slides(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three slides in the usual JPEG."""
    folder = tmp_path_factory.mktemp("slides")
    return [write_slide(folder / f"slide-{i}.tiff", (1024, 768), mpp=MPP, seed=i, pieces=1) for i in range(3)]


@pytest.fixture
def without_tiles(tmp_path: Path) -> Callable[[Path, int, list[int]], Path]:
    """A copy of a TIFF in which some of a plane's own tiles are absent, as scanners leave out what is empty."""
    import tifffile

    def make(path: Path, plane: int, absent: list[int]) -> Path:
        data = bytearray(path.read_bytes())
        with tifffile.TiffFile(path) as tiff:
            for name in ("TileOffsets", "TileByteCounts"):
                tag = tiff.pages[plane].tags[name]  # type: ignore[union-attr]
                assert tag.dtype == 4  # LONG
                for i in absent:
                    data[tag.valueoffset + 4 * i : tag.valueoffset + 4 * i + 4] = bytes(4)
        copy = tmp_path / f"absent-{plane}-{len(absent)}.tiff"
        copy.write_bytes(bytes(data))
        return copy

    return make
