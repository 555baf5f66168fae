"""publish(): the old bytes or the new ones, never a part."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marble import files
from marble.errors import InputError, IntegrityError


def test_publish_writes_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    files.publish(tmp_path / "deep" / "a.txt", "text")
    files.publish(tmp_path / "deep" / "a.txt", b"bytes")
    files.publish(tmp_path / "deep" / "b.bin", lambda file: file.write(b"xy"))
    assert (tmp_path / "deep" / "a.txt").read_bytes() == b"bytes"
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["a.txt", "b.bin"]


STEPS = ["open", "write", "fsync", "replace", "fsync_directory"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT])
def test_an_error_at_any_step_keeps_the_old_artefact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, kind: int
) -> None:
    target = files.publish(tmp_path / "a", b"old")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(kind, os.strerror(kind))

    content: Any = b"new"
    if step == "open":
        monkeypatch.setattr("builtins.open", fail)
    elif step == "write":
        content = fail
    elif step == "fsync_directory":
        monkeypatch.setattr(files, "_fsync_directory", fail)
    else:
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match=r"cannot write .*a: .* bytes free") as caught:
        files.publish(target, content)
    monkeypatch.undo()
    assert caught.value.errno == kind
    # after the rename the new bytes are there, whole; before it the old ones
    assert target.read_bytes() == (b"new" if step == "fsync_directory" else b"old")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_the_order_of_a_publish_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace: list[str] = []

    def traced(name: str) -> None:
        original = getattr(os, name)

        def call(*args: Any) -> Any:
            trace.append(name)
            return original(*args)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "replace"):
        traced(name)
    files.publish(tmp_path / "a", b"x")
    assert trace == ["fsync", "replace", "fsync"]


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "one").write_text("1")
        (folder / "two").write_text("2")

    files.publish_directory(tmp_path / "d", fill)
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["one", "two"]

    def half(folder: Path) -> None:
        (folder / "one").write_text("1")
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        files.publish_directory(tmp_path / "e", half)
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def _left_by_a_dead_process(target: Path) -> None:
    code = f"""
import os
from pathlib import Path
from marble import files
part = files._part_beside(Path({str(target)!r}))
part.write_bytes(b"half")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sweep_removes_only_what_dead_processes_left(tmp_path: Path) -> None:
    _left_by_a_dead_process(tmp_path / "a.b.json")
    mine = files._part_beside(tmp_path / "mine")
    mine.write_bytes(b"in progress")
    (tmp_path / ".hidden.part").write_bytes(b"somebody else's")
    assert files.sweep(tmp_path) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([mine.name, ".hidden.part"])
    assert files.sweep(tmp_path / "absent") == 0


def test_whoever_publishes_next_removes_what_a_dead_process_left_there(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    _left_by_a_dead_process(tmp_path / "runs" / "model.safetensors")
    _left_by_a_dead_process(tmp_path / "epoch-0001")
    mine = files._part_beside(tmp_path / "runs" / "mine")
    mine.write_bytes(b"in progress")
    files.publish(tmp_path / "runs" / "run.json", b"{}")
    files.publish_directory(tmp_path / "epoch-0002", lambda folder: (folder / "x").write_bytes(b"x"))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted([mine.name, "run.json"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-0002", "runs"]


def test_json_is_canonical_and_damage_names_the_file(tmp_path: Path) -> None:
    a = files.publish_json(tmp_path / "a.json", {"b": 1, "a": [1.5, "é"]}).read_bytes()
    b = files.publish_json(tmp_path / "b.json", {"a": [1.5, "é"], "b": 1}).read_bytes()
    assert a == b
    (tmp_path / "a.json").write_bytes(a[:-4])
    with pytest.raises(IntegrityError, match=r"a\.json"):
        files.read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"c\.json: no such file"):
        files.read_json(tmp_path / "c.json")


def test_hashes_are_those_of_the_standard_tool(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc" * 1000)
    said = subprocess.run(["sha256sum", str(tmp_path / "a")], check=True, capture_output=True, text=True).stdout
    assert files.sha256_file(tmp_path / "a") == said.split()[0] == files.sha256_bytes(b"abc" * 1000)
