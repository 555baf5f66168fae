"""Locks: one holder at a time, named to whoever comes second; a dead one's lock is taken over, a live one's never."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from marble.compute import locks
from marble.compute.locks import BusyError, Holder, hold
from marble.errors import WriteError
from tests.cli.running import marble


def lock_file(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**vars(Holder.this_process()), **changes}))
    return path


def test_the_second_is_told_who_is_at_work_and_nothing_stays_behind(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / ".a.lock"
    with hold(lock, "the store"):
        at_work = rf"the store is being worked on by process {os.getpid()} on "
        with pytest.raises(BusyError, match=at_work), hold(lock, "the store"):
            raise AssertionError
        assert lock.exists()
    assert list(lock.parent.iterdir()) == []
    with hold(lock, "the store"):
        pass


def test_who_waits_gets_it_when_the_holder_ends(tmp_path: Path) -> None:
    lock = tmp_path / ".a.lock"
    waited, order = threading.Event(), []

    def second() -> None:
        with hold(lock, "x", wait=True, on_wait=lambda _who: waited.set()):
            order.append("second")

    with hold(lock, "x"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(60)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_process_that_is_gone_or_another_with_its_number_loses_its_lock_at_once(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for changes in ({"pid": dead.pid}, {"started": "1"}):
        lock = lock_file(tmp_path / ".a.lock", **changes)
        with hold(lock, "x"):
            assert Holder.of(lock) is not None
        assert not lock.exists()


def test_another_host_is_believed_for_a_minute_after_its_last_heartbeat(tmp_path: Path) -> None:
    lock = lock_file(tmp_path / ".a.lock", host="0" * 16, name="node-7", pid=4)
    with pytest.raises(BusyError, match="process 4 on node-7"), hold(lock, "x"):
        raise AssertionError
    old = time.time() - locks.STALE_S - 5
    os.utime(lock, (old, old))
    with hold(lock, "x"):
        pass
    assert not lock.exists()


def test_a_lock_nobody_understands_is_held_until_it_is_old(tmp_path: Path) -> None:
    lock = tmp_path / ".a.lock"
    lock.write_text("[]")
    with pytest.raises(BusyError, match="another process"), hold(lock, "x"):
        raise AssertionError
    os.utime(lock, (0, 0))
    with hold(lock, "x"):
        pass


def test_heartbeats_keep_a_lock_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    lock = tmp_path / ".a.lock"
    with hold(lock, "x"):
        os.utime(lock, (0, 0))
        end = time.monotonic() + 60
        while lock.stat().st_mtime == 0 and time.monotonic() < end:
            time.sleep(0.01)
        assert lock.stat().st_mtime > 0


def test_sweeping_removes_only_locks_of_the_dead(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lock_file(tmp_path / ".gone.lock", pid=dead.pid)
    lock_file(tmp_path / ".here.lock")
    assert locks.sweep(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == [".here.lock"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"cannot write .*file"), hold(tmp_path / "file" / ".a.lock", "x"):
        raise AssertionError


def test_the_second_run_of_one_experiment_says_who_is_at_work_and_damages_nothing(tmp_path: Path) -> None:
    experiment = tmp_path / "tiny.toml"
    experiment.write_text(
        'cohort = { path = "synthetic:burden", patients = 12 }\ntask = "classification"\n'
        'split = { scheme = "kfold", folds = 3, repeats = 1 }\ntrain = { epochs = 1, warmup = 0 }\n'
        'models = [{ name = "mean" }]\n'
    )
    out = tmp_path / "runs"
    with hold(out / "tiny" / ".run.lock", "experiment 'tiny'"):
        second = marble("run", experiment, "--out", out)
        assert second.code == 2
        assert f"experiment 'tiny' is being worked on by process {os.getpid()} on " in second.output
        assert [path.name for path in (out / "tiny").iterdir()] == [".run.lock"]
    assert marble("run", experiment, "--out", out).code == 0
    assert not (out / "tiny" / ".run.lock").exists()
