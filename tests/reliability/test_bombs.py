"""Bombs, crashes and hangs: each is one failed item within its limits, and the slides around it get their bags."""

from __future__ import annotations

import os
import signal
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile

from marble.compute import Done, Failed, Limits, Processes
from marble.extract import SlideFacts, extract_slide
from marble.synthetic.slides import write_slide
from tests.cli.running import marble
from tests.extract.making import spec_of
from tests.extract.test_any_folder import SETTINGS
from tests.reliability.scale import scaled

MOST_S = 5  # seconds of processor time, which a busy machine does not stretch, until a bomb is refused


def png(width: int, height: int) -> bytes:
    """A small file that claims any size."""

    def part(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = part(b"IHDR", header) + part(b"IDAT", zlib.compress(bytes(1000))) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def bombs(folder: Path) -> list[Path]:
    """Ten files that claim more than they hold, or demand more than a worker may use."""
    folder.mkdir()
    for name, size in (("a.png", (8192, 8192)), ("b.png", (100_000, 100_000)), ("c.png", (2**31 - 1, 2**31 - 1))):
        (folder / name).write_bytes(png(*size))
    good = folder / "base"
    tifffile.imwrite(good, np.zeros((256, 256, 3), np.uint8), tile=(256, 256), compression="zlib", photometric="rgb")
    data = good.read_bytes()
    good.unlink()
    with_tags = {"d.tif": (256, 100_000), "e.tif": (256, 2**31), "f.ndpi": (256, 2**32 - 1), "g.svs": (257, 2**31 - 1)}
    for name, (tag, value) in with_tags.items():
        (folder / name).write_bytes(_with_tag(data, tag, value))
    (folder / "h.tif").write_bytes(_looping(data))
    (folder / "i.tif").write_bytes(data[:8])
    (folder / "j.jpg").write_bytes(
        b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01\xff\xd9"
    )
    return sorted(folder.iterdir())


def _entries(data: bytes) -> tuple[int, int]:
    (offset,) = struct.unpack("<I", data[4:8])
    (count,) = struct.unpack("<H", data[offset : offset + 2])
    return offset + 2, count


def _with_tag(data: bytes, tag: int, value: int) -> bytes:
    start, count = _entries(data)
    changed = bytearray(data)
    for at in range(start, start + 12 * count, 12):
        if struct.unpack("<H", data[at : at + 2])[0] == tag:
            changed[at + 2 : at + 12] = struct.pack("<HII", 4, 1, value)
    return bytes(changed)


def _looping(data: bytes) -> bytes:
    start, count = _entries(data)
    changed = bytearray(data)
    changed[start + 12 * count : start + 12 * count + 4] = data[4:8]
    return bytes(changed)


@pytest.mark.reliability
@pytest.mark.timeout(600)
def test_ten_bombs_are_refused_by_name_and_a_good_slide_among_them_is_not(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    made = bombs(tmp_path / "slides")
    assert len(made) == 10
    good = write_slide(tmp_path / "slides" / "good.tiff", (512, 384), mpp=0.5, pieces=1)
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\n" + "".join(f"{path.name},0.5\n" for path in made))
    ended = marble("extract", *made, good, "--store", tmp_path / "bags", "--mpp-csv", table, "--memory", 1, *SETTINGS)
    assert ended.code == 1
    assert len(ended.failed) == 10
    assert all(any(path.name in line for line in ended.failed) for path in made)
    assert "good: ok" in ended.output
    assert "died" not in ended.output  # each was refused, none had to be killed
    record_property("cases", len(made))
    facts, spec = SlideFacts(mpp=0.5), spec_of()
    assert extract_slide(good, spec, tmp_path / "here", facts=facts).status == "ok"  # all that is imported, is
    for path in made:
        begin = time.process_time()
        assert extract_slide(path, spec, tmp_path / "here", facts=facts).status == "failed"
        assert time.process_time() - begin < MOST_S, path.name


def misbehave(kind: str) -> str:
    if kind.startswith("segv"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    while kind.startswith("hang"):
        time.sleep(1)
    return kind


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_crashes_kills_and_hangs_are_one_failed_item_each(record_property: Callable[[str, object], None]) -> None:
    each = scaled(20)
    record_property("cases", 3 * each)
    items = [f"{kind}-{i}" for i in range(each) for kind in ("segv", "good", "kill", "hang")]
    outcomes = list(Processes(2, limits=Limits(timeout_s=10)).map(misbehave, items))
    assert sorted(outcome.item for outcome in outcomes) == sorted(items)
    assert all(isinstance(o, Done) == o.item.startswith("good") for o in outcomes)
    reasons = [o.reason for o in outcomes if isinstance(o, Failed)]
    assert sum("died 2 times (signal SIGSEGV)" in reason for reason in reasons) == each
    assert sum("died 2 times (signal SIGKILL)" in reason for reason in reasons) == each
    assert sum("no answer within 10 s" in reason for reason in reasons) == each
