"""Work does not end because nobody reads what is said of it, nor because an encoding lacks a letter."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marble.cli.outlet import lasting
from tests.cli.splitting import write


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, io.TextIOWrapper]]:
    """The end that is read, and a stream in place of the process's own over the other end."""
    reads, writes = os.pipe()
    with open(writes, "w", encoding="latin-1") as stream:
        monkeypatch.setattr(sys, "__stdout__", stream)
        yield reads, stream


def test_letters_that_an_encoding_lacks_are_written_as_numbers(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reads, stream = pipe
    print("Ünal ─ Łódź", file=lasting(stream), flush=True)
    assert os.read(reads, 100) == b"\xdcnal \\u2500 \\u0141\xf3d\\u017a\n"
    os.close(reads)


def test_a_reader_who_has_gone_is_no_error(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reads, stream = pipe
    os.close(reads)
    lasted = lasting(stream)
    for _ in range(2):
        print("x" * 100_000, file=lasted, flush=True)


def test_a_stream_in_place_of_the_process_s_own_is_left_alone() -> None:
    held = io.StringIO()
    assert lasting(held) is held


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_splits_are_written_although_nobody_reads_what_is_said(unbuffered: str, tmp_path: Path) -> None:
    rows = [f"P{number:02d},P{number:02d}-A,{'ab'[number % 2]}" for number in range(20)]
    table = write(tmp_path / "cohort.csv", "\n".join(["case_id,slide_id,label", *rows]))
    out = tmp_path / "splits"
    process = subprocess.Popen(
        [sys.executable, "-m", "marble", "split", str(table), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=240) == 0
    assert len(list((out / "holdout").glob("*.json"))) == 5
