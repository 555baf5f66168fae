"""kill -9 at random moments of a twenty-slide extraction, resumed to its end: nothing lost, nothing twice.

The work is done by a process that has imported everything and forks: each try is a child that is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from marble.extract import Machine, extract_many
from marble.synthetic.slides import write_slide
from tests.extract.making import spec_of, tree
from tests.reliability.scale import scaled

KILLS = scaled(200)
SLIDES = 20
SCRIPT = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from marble.extract import Machine, extract_many
from tests.extract.making import spec_of, tree

torch.set_num_threads(1)
root, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
slides, expected = sorted(root.glob("*.tiff")), tree(root / "whole")
moments = random.Random(seed)


def started(store):
    # a child at work on the store, once it has begun
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, b".")
        summary = extract_many(slides, spec_of(), store, machine=Machine(threads=2))
        os._exit(0 if summary.ok else 1)
    os.read(reader, 1)
    os.close(reader), os.close(writer)
    return pid


def records(store):
    return sum(path.name != "store.json" for path in store.glob("*/*.json"))


def alive(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def whole(store):
    began = time.monotonic()
    assert os.waitpid(started(store), 0)[1] == 0
    assert tree(store) == expected, (store, seed)
    return time.monotonic() - began


killed = broken = rounds = 0
seconds = whole(root / "first")
while killed < kills:
    store = root / f"store-{rounds}"
    rounds += 1
    while killed < kills and records(store) < len(slides):
        pid = started(store)
        some = records(store) + moments.randrange(5)  # the clock starts once so many are done, however busy the machine
        while records(store) < some and alive(pid):
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 2 * seconds / len(slides)))
        os.kill(pid, signal.SIGKILL)
        killed += os.waitpid(pid, 0)[1] == signal.SIGKILL  # one that had ended already is no kill
        broken += any(path.name.endswith((".part", ".lock")) for path in store.rglob(".*"))
    whole(store)
    assert not list(store.rglob("*.part")) and not list(store.rglob("*.lock"))
assert broken > kills // 10, broken  # many of them did hit a slide under way
print(json.dumps(killed))
"""


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_kills_leave_the_store_as_an_uninterrupted_run_does(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    slides = [write_slide(tmp_path / f"s{i:02d}.tiff", (1024, 768), mpp=0.5, seed=i, pieces=2) for i in range(SLIDES)]
    assert extract_many(slides, spec_of(), tmp_path / "whole", machine=Machine(threads=2)).ok
    assert sum(name.endswith(".json") for name in tree(tmp_path / "whole")) == SLIDES + 1  # and the store's own
    seed = os.environ.get("MARBLE_SEED", "0")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(KILLS), seed]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    record_property("cases", json.loads(ended.stdout))
