"""Training that is repeated, killed or asked to end: the bytes of one uninterrupted run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marble.training.run import PlannedRun, execute
from tests.reliability.scale import scaled
from tests.training.jobs import plan
from tests.training.test_fit import MARBLE, WORKER, _bytes

Record = Callable[[str, object], None]
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]
ABMIL = '[{ name = "abmil", hidden = 16 }]'


@pytest.mark.parametrize("kind", ["burden", "survival"])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_seed_gives_the_same_bytes_every_time(
    tmp_path: Path, kind: str, seed: int, record_property: Record
) -> None:
    repeats = 3
    results = []
    for number in range(repeats):
        planned = plan(tmp_path / str(number), kind, MARBLE, epochs=2)[0]
        execute(planned.model_copy(update={"job": planned.job.model_copy(update={"seed": seed})}))
        results.append(_bytes(planned.folder))
    assert results.count(results[0]) == repeats
    record_property("cases", repeats)


#: forks, so that a try costs the fit and not the import; the parent itself never computes, else it could not fork
KILLS = """
import json, os, random, shutil, signal, sys, time
from pathlib import Path
import torch
from marble.training.checkpoint import newest
from marble.training.run import PlannedRun, execute
from tests.training.test_fit import _bytes

torch.set_num_threads(1)
straight, *broken = [PlannedRun.model_validate_json(Path(path).read_text()) for path in sys.argv[2:]]
each, moments = int(sys.argv[1]), random.Random(0)


def started(planned):
    # a child at work on the run, once it has begun
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, b".")
        execute(planned)
        os._exit(0)
    os.read(reader, 1)
    os.close(reader), os.close(writer)
    return pid


def whole(planned):
    began = time.monotonic()
    assert os.waitpid(started(planned), 0)[1] == 0
    return time.monotonic() - began


def epochs(root):
    return max((int(path.name[6:]) for path in root.glob("checkpoints/epoch-*") if path.name[6:].isdigit()), default=0)


def alive(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


seconds = whole(straight)
expected = _bytes(straight.folder)
killed = midway = 0
for planned in broken:
    root, here = Path(planned.folder), 0
    saved = False
    while here < each:
        pid = started(planned)
        epoch = moments.randrange(4)  # the clock starts once this one is saved, however busy the machine is
        while epochs(root) < epoch and alive(pid):
            time.sleep(0.002)
        time.sleep(moments.uniform(0, seconds / 6))
        os.kill(pid, signal.SIGKILL)
        here += os.waitpid(pid, 0)[1] == signal.SIGKILL  # one that had ended already is no kill
        saved = saved or epochs(root) > 0
        if (root / "fit.json").exists():
            shutil.rmtree(root)  # it was done: once more from the start
            saved = False
        elif saved:
            assert newest(root / "checkpoints") is not None  # once there was one, a valid one always exists
            midway += 1
    seconds = max(seconds / 2, whole(planned))
    assert _bytes(root) == expected, root
    assert not list(root.rglob("*.part"))
    killed += here
assert midway > killed // 10, midway  # many of them did hit a fit between its first and its last epoch
print(json.dumps(killed))
"""


def test_training_killed_at_random_moments_resumes_bitwise(tmp_path: Path, record_property: Record) -> None:
    kills = scaled(50)
    each = min(10, kills)
    planned = [
        plan(tmp_path / str(number), models=ABMIL, patients=16, epochs=4)[0] for number in range(kills // each + 1)
    ]
    jobs = [Path(one.folder).parent / f"job-{number}.json" for number, one in enumerate(planned)]
    for path, one in zip(jobs, planned, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.model_dump_json())
    command = [sys.executable, "-c", KILLS, str(each), *map(str, jobs)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    record_property("cases", json.loads(ended.stdout))


def _asked_to_end(planned: PlannedRun, tmp_path: Path, epoch: int) -> int:
    """Start the run through the command line's own handler, ask it to end after `epoch`; its exit code."""
    job = tmp_path / "job.json"
    job.write_text(planned.model_dump_json())
    script = "import signal\nfrom marble.cli import _end\nsignal.signal(signal.SIGTERM, _end)\n" + WORKER
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(job)], env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL
    )
    ready = Path(planned.folder) / "checkpoints" / f"epoch-{epoch:04d}"
    while process.poll() is None and not ready.exists():
        time.sleep(0.005)  # until it is there; a fit that ends before it is asked is a case too
    process.send_signal(signal.SIGTERM)
    return process.wait(300)


def test_asked_to_end_it_ends_and_resumes_bitwise(tmp_path: Path, record_property: Record) -> None:
    times, epochs = scaled(20), 12
    straight = plan(tmp_path / "straight", models=ABMIL, epochs=epochs)[0]
    execute(straight)
    stopped = 0
    for number in range(times):
        broken = plan(tmp_path / str(number), models=ABMIL, epochs=epochs)[0]
        code = _asked_to_end(broken, tmp_path, 1 + number % 5)
        stopped += code != 0
        if code != 0:
            assert (Path(broken.folder) / "checkpoints").is_dir()
            assert not (Path(broken.folder) / "run.json").exists()
        execute(broken)
        assert _bytes(straight.folder) == _bytes(broken.folder), number
    assert stopped > 0
    record_property("cases", times)
