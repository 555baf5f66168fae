"""A TIFF's claims: damage is named in words, bombs cost nothing."""

from __future__ import annotations

import resource
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.errors import SlideError
from marble.slides.readers.preflight import MAX_IFDS, preflight
from tests.slides.conftest import Pixels, box_mean, drop_tiles, write_tiff

WIDTH, HEIGHT, ROWS = 256, 257, 278


def _classic(*directories: bytes, start: int = 8) -> bytes:
    return b"II*\0" + struct.pack("<I", start) + b"".join(directories)


def _directory(tags: list[tuple[int, int, int, int]], following: int = 0) -> bytes:
    body = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return struct.pack("<H", len(tags)) + body + struct.pack("<I", following)


def _tiled(width: int, height: int, side: int, count: int, offset: int, length: int) -> list[tuple[int, int, int, int]]:
    """Tags of a tiled image with `count` tiles whose places and lengths are arrays at `offset` and `length`."""
    return [(WIDTH, 4, 1, width), (HEIGHT, 4, 1, height), (322, 4, 1, side), (323, 4, 1, side),
            (324, 4, count, offset), (325, 4, count, length)]  # fmt: skip


@pytest.mark.parametrize("bigtiff", [False, True])
def test_counts_directories_and_missing_tiles(tmp_path: Path, noise: Callable[..., Pixels], bigtiff: bool) -> None:
    pixels = noise(700, 500)
    path = write_tiff(tmp_path / "a.tiff", [pixels, box_mean(pixels, 4)], bigtiff=bigtiff)
    drop_tiles(path, [1, 4])
    claims = preflight(path)
    assert claims is not None
    assert [(d.width, d.height, d.segments, d.missing) for d in claims.directories] == [
        (700, 500, 6, 2),
        (175, 125, 1, 0),
    ]
    assert not claims.has_sub_directories


def test_finds_sub_directories(tmp_path: Path, noise: Callable[..., Pixels]) -> None:
    pixels = noise(600, 520)
    with tifffile.TiffWriter(tmp_path / "a.ome.tif", ome=True) as tiff:
        tiff.write(pixels, tile=(256, 256), photometric="rgb", subifds=1, metadata={"axes": "YXS"})
        tiff.write(box_mean(pixels, 2), tile=(256, 256), photometric="rgb", subfiletype=1)
    claims = preflight(tmp_path / "a.ome.tif")
    assert claims is not None
    assert claims.has_sub_directories
    assert [d.is_sub for d in claims.directories] == [False, True]


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n" + bytes(50), b"hello", b"II", b"II\x2b\0\4\0\0\0" + bytes(8)])
def test_other_files_pass(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    assert preflight(tmp_path / "a") is None


def test_names_the_truncated_tile_and_by_how_much(tmp_path: Path, noise: Callable[..., Pixels]) -> None:
    path = write_tiff(tmp_path / "a.tiff", [noise(1024, 1024)])
    with tifffile.TiffFile(path) as tiff:
        offsets, counts = tiff.pages[0].dataoffsets, tiff.pages[0].databytecounts
    ends = [offset + count for offset, count in zip(offsets, counts, strict=True)]
    cut = ends[12] + 1000
    path.write_bytes(path.read_bytes()[:cut])
    excess = ends[13] - cut
    assert excess > 100_000
    message = rf"truncated: tile 13 ends {excess / 1e6:.1f} MB past end of file \(3 of 16 tiles of image 0 do\)"
    with pytest.raises(SlideError, match=message):
        preflight(path)


def test_truncated_directory(tmp_path: Path, noise: Callable[..., Pixels]) -> None:
    path = write_tiff(tmp_path / "a.tiff", [noise(300, 300)])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SlideError, match="truncated: its directory needs bytes up to"):
        preflight(path)


def _loop() -> bytes:
    return _classic(_directory([(WIDTH, 4, 1, 8), (HEIGHT, 4, 1, 8), (273, 4, 1, 1), (279, 4, 1, 4)], following=8))


def _many() -> bytes:
    size = 2 + 4 * 12 + 4
    tags = [(WIDTH, 4, 1, 8), (HEIGHT, 4, 1, 8), (273, 4, 1, 1), (279, 4, 1, 4)]
    return _classic(*(_directory(tags, following=8 + (i + 1) * size) for i in range(MAX_IFDS + 5)))


def _shared() -> bytes:
    places = struct.pack("<I", 4) * 10_000
    lengths = struct.pack("<I", 5000) * 10_000
    start = 8 + 2 + 6 * 12 + 4
    return _classic(_directory(_tiled(25_600, 25_600, 256, 10_000, start, start + 40_000)), places, lengths)


def _all_missing() -> bytes:
    start = 8 + 2 + 6 * 12 + 4
    return _classic(_directory(_tiled(2560, 2560, 256, 100, start, start + 400)), bytes(800))


def _entities() -> bytes:
    text = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaa">]><x>&a;</x>\0'
    start = 8 + 2 + 5 * 12 + 4
    tags = [(WIDTH, 4, 1, 8), (HEIGHT, 4, 1, 8), (270, 2, len(text), start), (273, 4, 1, 1), (279, 4, 1, 4)]
    return _classic(_directory(tags), text)


BOMBS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "no image": (_classic(start=0), "without any image"),
    "loop": (_loop(), "form a loop"),
    "many directories": (_many(), f"more than {MAX_IFDS} image directories"),
    "shared tiles": (_shared(), "share bytes"),
    "all missing": (_all_missing(), "every one of the 100 tiles of image 0 is missing"),
    "2**31 wide": (_classic(_directory(_tiled(2**31, 8, 256, 1, 8, 8))), "beyond any scanner"),
    "2**32-1 both": (_classic(_directory(_tiled(2**32 - 1, 2**32 - 1, 256, 1, 8, 8))), "beyond any scanner"),
    "zero": (_classic(_directory(_tiled(0, 8, 256, 1, 8, 8))), "beyond any scanner"),
    "huge tile": (_classic(_directory(_tiled(60_000, 60_000, 60_000, 1, 8, 8))), "tiles of 60,000 x 60,000"),
    "zero tile": (_classic(_directory(_tiled(600, 600, 0, 1, 8, 8))), "tiles of 0 x 0"),
    "tile count": (_classic(_directory(_tiled(300_000, 300_000, 16, 1, 8, 8))), "tiles"),
    "wrong count": (_classic(_directory(_tiled(512, 512, 256, 1, 8, 8))), "needs 4 tiles but lists 1 places"),
    "long list": (_classic(_directory(_tiled(512, 512, 256, 2**31, 8, 8))), "where 4 belong"),
    "entities": (_entities(), "defines XML entities"),
    "many tags": (_classic(struct.pack("<H", 60_000)), "claims 60,000 tags"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_by_name_and_cost_nothing(tmp_path: Path, name: str) -> None:
    content, reason = BOMBS[name]
    path = tmp_path / "bomb.tiff"
    path.write_bytes(content)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(SlideError, match=reason) as caught:
        preflight(path)
    assert str(path) in str(caught.value)
    assert time.process_time() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_offsets_that_overflow_64_bits(tmp_path: Path, noise: Callable[..., Pixels]) -> None:
    path = write_tiff(tmp_path / "a.tiff", [noise(512, 256)], bigtiff=True)
    with tifffile.TiffFile(path, mode="r+") as tiff:
        first: Any = tiff.pages[0]
        first.tags["TileOffsets"].overwrite([2**64 - 8, 2**64 - 8])
    with pytest.raises(SlideError, match="truncated: tile 0"):
        preflight(path)


@settings(max_examples=150, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), min_size=1, max_size=6),
    keep=st.integers(0, 2000),
)
def test_any_damage_is_refused_or_passes(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], keep: int
) -> None:
    pixels = np.random.default_rng(0).integers(0, 8, (300, 300, 3), dtype=np.uint8)
    path = write_tiff(tmp_path_factory.mktemp("fuzz") / "a.tiff", [pixels])
    content = bytearray(path.read_bytes())
    for place, value in flips:
        content[place] = value
    path.write_bytes(content if keep > 1000 else content[:keep])
    with suppress(SlideError):  # anything else fails the test
        preflight(path)
