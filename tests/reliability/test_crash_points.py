"""Crashes while something is written: at every step, and at random moments of checkpointing.

The work is done by a process that forks: each try is a child that ends itself, or is killed, and costs milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability.scale import scaled

STEPS = """
import json, os, shutil, signal, sys
from pathlib import Path
import torch
from marble import files
from marble.bags.store import BagStore
from marble.training.checkpoint import newest, save_checkpoint
from tests.bags.making import random_bag

torch.set_num_threads(1)
ROOT = Path(sys.argv[1])


def old_new(name, value):
    # (write, read) of one artefact; reading gives None where there is none, and raises where it is damaged
    root = ROOT / name
    if name == "file":
        return (lambda: files.publish_json(root / "m.json", {"value": value, "filling": "x" * 5000}),
                lambda: files.read_json(root / "m.json")["value"] if (root / "m.json").exists() else None)
    if name == "checkpoint":
        def read():
            found = newest(root)
            return None if found is None else int(found.tensors("model")["w"][0])
        parts = {"model": {"w": torch.full((500,), value)}, "optimizer": {"m": torch.ones(500)}}
        return lambda: save_checkpoint(root, value, parts, {"epoch": value}), read
    bag = random_bag("s", coarse=4 + value)
    def whole():
        store = BagStore(root)
        return len(store.load("s").levels[0]) - 4 if "s" in store else None
    return lambda: BagStore(root).save(bag), whole


def dies(write, step):
    # a child that ends itself before its step-th open, fsync, rename, removal or making of a folder
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == signal.SIGKILL
    seen = 0
    def count(*_):
        nonlocal seen
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
    def audit(event, args):
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir") and str(ROOT) in str(args[0]):
            count()
    fsync = os.fsync
    os.fsync = lambda handle: (count(), fsync(handle))[1]
    sys.addaudithook(audit)
    write()
    os._exit(0)


def tree(folder):
    return {str(p.relative_to(folder)): files.sha256_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}


tried = 0
for name in ("file", "checkpoint", "bag"):
    for before in (False, True):  # an artefact of before, or none
        write_old, _ = old_new(name, 1)
        write, read = old_new(name, 2)
        step = 0
        while True:
            step += 1
            shutil.rmtree(ROOT / name, ignore_errors=True)
            if before:
                write_old()
            killed = dies(write, step)
            try:
                found = read()
            except Exception as error:
                if name != "bag" or not before:
                    raise
                found = str(error)  # between a bag and its record the old pair is gone: refused, never taken
                assert "changed since they were written" in found, found
            else:
                assert found in ((1, 2) if before else (None, 2)), (name, before, step, found)
            if not killed:
                assert found == 2, (name, found)
                break
            tried += 1
            write()
            files.sweep(ROOT / name)
            assert read() == 2, (name, step)
            resumed = tree(ROOT / name)
            shutil.rmtree(ROOT / name)
            if before:
                write_old()
            write()
            assert resumed == tree(ROOT / name), (name, before, step)
print(json.dumps(tried))
"""

KILLS = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from marble import files
from marble.training.checkpoint import newest, prune, save_checkpoint

torch.set_num_threads(1)
root, kills = Path(sys.argv[1]), int(sys.argv[2])
parts = {"model": {"w": torch.ones(20000)}, "optimizer": {"m": torch.ones(20000)}}
moments, epoch, unfinished = random.Random(0), 0, 0
save_checkpoint(root, 0, parts, {})
for _ in range(kills):
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        while True:  # goes on until it is killed
            epoch += 1
            os.write(writer, b".")
            save_checkpoint(root, epoch, parts, {"epoch": epoch})
            prune(root, best=epoch)
    os.read(reader, 1)  # it is at work
    time.sleep(moments.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader), os.close(writer)
    unfinished += any(path.name.endswith(".part") for path in root.iterdir())
    found = newest(root)
    assert found is not None, "no valid checkpoint"
    assert found.epoch >= epoch, "an older one than before"
    found.tensors("model"), found.tensors("optimizer")
    epoch = found.epoch % 9000
    files.sweep(root)
    assert not any(path.name.endswith(".part") for path in root.iterdir())
assert unfinished > kills // 10, unfinished  # many of them did hit a write
print(json.dumps(kills))
"""


def forked(script: str, *arguments: object) -> int:
    """Run a script in a process of its own; the number of tries it prints."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return int(json.loads(ended.stdout))


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_a_crash_at_every_step_leaves_the_old_or_the_new_whole(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    tried = forked(STEPS, tmp_path)
    assert tried > 30
    record_property("cases", tried)


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_killed_while_checkpointing_a_valid_checkpoint_is_always_there(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", forked(KILLS, tmp_path, scaled(200)))
