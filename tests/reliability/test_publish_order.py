"""What a study writes, traced: a file is on the disk before it gets its name, and its name before anybody goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from marble import files
from marble.bags.store import BagStore
from marble.training.checkpoint import save_checkpoint
from marble.training.run import execute
from tests.bags.making import random_bag
from tests.cli.running import marble
from tests.training.jobs import plan

pytestmark = pytest.mark.reliability


@dataclass(frozen=True)
class Flushed:
    """A file or folder as it was when it was forced to disk."""

    inode: int
    bytes: int
    changed_ns: int


@dataclass(frozen=True)
class Named:
    """A file or folder that got its final name."""

    inode: int
    folder: int


class Trace:
    """Every flush and every renaming, in their order. A file keeps its inode whatever it is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Flushed | Named] = []
        fsync = os.fsync

        def flushed(handle: int) -> None:
            fsync(handle)
            found = os.fstat(handle)
            self.events.append(Flushed(found.st_ino, found.st_size, found.st_mtime_ns))

        monkeypatch.setattr(os, "fsync", flushed)
        for name in ("replace", "rename"):
            monkeypatch.setattr(os, name, self._naming(getattr(os, name)))

    def _naming(self, original: Callable[..., None]) -> Callable[..., None]:
        def named(source: Any, target: Any) -> None:
            inode = Path(source).stat().st_ino
            original(source, target)
            self.events.append(Named(inode, Path(target).parent.stat().st_ino))

        return named

    def check(self, root: Path) -> int:
        """All files below a folder were published in order; how many there are."""
        found = [path for path in sorted(root.rglob("*")) if path.is_file()]
        for path in found:
            self._check(path, root)
        return len(found)

    def _check(self, path: Path, root: Path) -> None:
        above = [folder for folder in path.parents if folder != root and root in folder.parents]
        inodes = {one: one.stat().st_ino for one in (path, *above)}
        naming = [
            at for at, event in enumerate(self.events) if isinstance(event, Named) and event.inode in inodes.values()
        ]
        assert naming, f"{path.name} was written under its own name"
        at = naming[-1]
        last = self.events[at]
        assert isinstance(last, Named)
        state = path.stat()
        whole = Flushed(state.st_ino, state.st_size, state.st_mtime_ns)
        assert whole in self.events[:at], f"{path.name} was not on the disk, whole, before it got its name"
        for folder in above:  # those that came with it
            if last.inode in {one.stat().st_ino for one in (folder, *folder.parents)}:
                assert self._flushed(folder.stat().st_ino, self.events[:at]), f"{folder.name} was not flushed"
        assert self._flushed(last.folder, self.events[at:]), f"the folder that {path.name} is in was not flushed"

    def _flushed(self, inode: int, events: list[Flushed | Named]) -> bool:
        return any(isinstance(event, Flushed) and event.inode == inode for event in events)


def _a_file(root: Path) -> None:
    files.publish(root / "one", b"x" * 100_000)
    files.publish(root / "one", b"y" * 100_000)
    files.publish(root / "two", lambda file: [file.write(b"z" * 50_000) for _ in range(3)])


def _json(root: Path) -> None:
    files.publish_json(root / "a" / "value.json", {"value": 1})


def _a_folder(root: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "deep" / "deeper").mkdir(parents=True)
        for name in ("a", "deep/b", "deep/deeper/c"):
            (folder / name).write_text(name * 1000)

    files.publish_directory(root / "folder", fill)


def _a_bag(root: Path) -> None:
    BagStore(root).save(random_bag())


def _a_checkpoint(root: Path) -> None:
    save_checkpoint(root, 1, {"model": {"w": torch.ones(500)}, "optimizer": {"m": torch.ones(500)}}, {"epoch": 1})


def _a_run(root: Path) -> None:
    planned = plan(root.parent / "planned")[0]
    execute(planned.model_copy(update={"folder": str(root)}))


def _a_bill(root: Path) -> None:
    assert marble("doctor", "--sbom", root / "bill.json").code == 0


WRITERS = (_a_file, _json, _a_folder, _a_bag, _a_checkpoint, _a_run, _a_bill)


@pytest.mark.parametrize("write", WRITERS)
def test_whatever_is_written_is_durable_in_this_order(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    root = tmp_path / "written"
    root.mkdir()
    trace = Trace(monkeypatch)
    write(root)
    record_property("cases", trace.check(root))


@pytest.mark.parametrize("skipped", ["fsync", "naming"])
def test_the_trace_sees_what_is_left_out(skipped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(monkeypatch)
    if skipped == "fsync":
        monkeypatch.setattr(os, "fsync", lambda handle: None)
        files.publish(tmp_path / "a", b"x")
    else:
        (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(AssertionError, match="a was "):
        trace.check(tmp_path)
