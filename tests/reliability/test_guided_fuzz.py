"""Readers of TIFF headers, codestreams, tables, splits and manifests, under bytes that search for their weak places."""

from __future__ import annotations

import io
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
import tifffile

from marble import guarded_json, tabular
from marble.cohorts import assemble, audit, fields, read_cohort, read_splits, reading, split_files, tables
from marble.errors import MarbleError, SlideError, TableError
from marble.extract import read_manifest, source
from marble.slides.readers import codestream, preflight
from tests.cohorts.test_fuzz import SPLITS, TABLES
from tests.reliability import guided
from tests.reliability.scale import scaled
from tests.slides.readers.test_preflight import BOMBS

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]
GIB = 2**30
PIXELS = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
WORDS = (
    b",", b";", b"\t", b'"', b"\n", b"\r\n", b"\0", b"\xff", b"NaN", b"-1", b"1e5", b"\xef\xbb\xbf", b"=", b"{", b"[",
)  # fmt: skip


def _tiffs() -> list[bytes]:
    found = [content for content, _ in BOMBS.values() if len(content) < 2000]
    for options in ({"bigtiff": True}, {"byteorder": ">"}, {"ome": True}):
        file = io.BytesIO()
        tifffile.imwrite(file, PIXELS, tile=(16, 16), photometric="rgb", **options)
        found.append(file.getvalue()[:8000])
    return found


def _codestreams() -> list[bytes]:
    def encoded(ending: str, *options: int) -> bytes:
        return cv2.imencode(ending, PIXELS, list(options))[1].tobytes()

    restarts = encoded(".jpg", cv2.IMWRITE_JPEG_RST_INTERVAL, 1)
    return [encoded(".jpg"), restarts, encoded(".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1), encoded(".jp2")]


def _read_codestream(data: bytes) -> None:
    for read in (
        codestream.jpeg_size, codestream.plain_jpeg, codestream.jpeg_scan, codestream.huffman_symbols,
        codestream.restart_gaps, codestream.has_restarts, codestream.jpeg2000_size, codestream.jpeg2000_is_whole,
    ):  # fmt: skip
        read(data)


def _from_file(read: Callable[[Path], object], path: Path, *expected: type[Exception]) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(*expected):  # anything else fails the test
            read(path)

    return target


def _read_split(path: Path) -> None:
    with suppress(MarbleError):
        audit(path).lines()
    for split in read_splits(path):
        split.fingerprint()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize("reader", ["tiff", "codestream", "table", "split.csv", "split.json", "manifest"])
def test_bytes_that_search_end_in_an_answer_or_a_named_refusal(
    reader: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    split = _from_file(_read_split, tmp_path / reader, MarbleError)
    manifest = [f"{'0a' * 32}  a.svs\n{'1b' * 32} *b.svs\n".encode(), f"sha256,file\n{'2c' * 32},c.svs\n".encode()]
    targets: dict[str, tuple[Callable[[bytes], None], Sequence[ModuleType], Sequence[bytes]]] = {
        "tiff": (_from_file(preflight.preflight, tmp_path / "a.tiff", SlideError), [preflight], _tiffs()),
        "codestream": (_read_codestream, [codestream], _codestreams()),
        "table": (
            _from_file(read_cohort, tmp_path / "a.csv", TableError),
            [tabular, tables, reading, fields, assemble], TABLES,
        ),
        "split.csv": (split, [tabular, split_files], [text for suffix, text in SPLITS if suffix == ".csv"]),
        "split.json": (split, [guarded_json, split_files], [text for suffix, text in SPLITS if suffix == ".json"]),
        "manifest": (_from_file(read_manifest, tmp_path / "sums.txt", TableError), [source], manifest),
    }  # fmt: skip
    target, modules, seeds = targets[reader]
    tries, before = scaled(4000), _peak()
    found = guided.explore(target, modules, seeds, tries, WORDS)
    record_property("cases", tries)
    assert found.steps > found.seeds  # it went where no seed had been
    assert found.kept
    assert _peak() - before < GIB


def _four_doors(data: bytes) -> None:
    if data[:1] != b"\x80":
        return
    if data[1:2] != b"\x7f":
        return
    if data[2:3] != b"\xff":
        return
    if data[3:4] == b"\x08":
        raise ZeroDivisionError("the last door")


def test_the_search_finds_what_chance_would_not() -> None:
    """One input in four billion opens all doors; each that opens is kept, so the next is one in thousands."""
    with pytest.raises(ZeroDivisionError, match="the last door") as caught:
        guided.explore(_four_doors, [sys.modules[__name__]], [b"\0\0\0\0\0"], 60_000)
    assert caught.value.__notes__[0].startswith(r"the input was b'\x80\x7f\xff\x08")
