"""Training that is repeated, killed or asked to end: the bytes of one uninterrupted run."""

from __future__ import annotations

import os
import random
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
from tests.training.test_fit import MARBLE, WORKER, _bytes, _killed_and_resumed

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


def test_training_killed_at_random_moments_resumes_bitwise(tmp_path: Path, record_property: Record) -> None:
    kills, each = scaled(50), 5
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import marble.training.run"], check=True)
    importing = time.monotonic() - began
    straight = plan(tmp_path / "straight", models=ABMIL, epochs=4)[0]
    began = time.monotonic()
    execute(straight)
    whole = importing + time.monotonic() - began
    rng = random.Random(0)
    for number in range(kills // each):
        broken = plan(tmp_path / str(number), models=ABMIL, epochs=4)[0]
        _killed_and_resumed(broken, tmp_path, each, rng, whole)
        assert _bytes(straight.folder) == _bytes(broken.folder), number
        assert not list(Path(broken.folder).rglob("*.part"))
    record_property("cases", kills // each * each)


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
