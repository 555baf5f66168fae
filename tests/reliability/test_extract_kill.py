"""kill -9 at random moments of a twenty-slide extraction, resumed to its end: nothing lost, nothing twice."""

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

from marble.extract import Machine, extract_many
from marble.synthetic.slides import write_slide
from tests.extract.making import spec_of, tree
from tests.reliability.scale import scaled

KILLS = scaled(200)
SLIDES = 20
SCRIPT = """
import sys
from pathlib import Path
from marble.extract import Machine, extract_many
from tests.extract.making import spec_of

store, *slides = sys.argv[1:]
print("ready", flush=True)
summary = extract_many([Path(s) for s in slides], spec_of(), store, machine=Machine(threads=2))
sys.exit(0 if summary.ok else 1)
"""


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_kills_leave_the_store_as_an_uninterrupted_run_does(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    slides = [write_slide(tmp_path / f"s{i}.tiff", (1536, 1024), mpp=0.5, seed=i, pieces=2) for i in range(SLIDES)]
    began = time.monotonic()
    assert extract_many(slides, spec_of(), tmp_path / "whole", machine=Machine(threads=2)).ok
    duration = time.monotonic() - began
    expected = tree(tmp_path / "whole")
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    seed = int(os.environ.get("MARBLE_SEED", "0"))
    moments = random.Random(seed)
    killed, rounds = 0, 0
    while killed < KILLS:
        store = tmp_path / f"store-{rounds}"
        rounds += 1
        for _ in range(4):  # several kills of one store, then it may end
            command = [sys.executable, str(script), str(store), *map(str, slides)]
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moments.uniform(0, duration / 2))
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            process.stdout.close()
        assert extract_many(slides, spec_of(), store, machine=Machine(threads=2)).ok
        assert tree(store) == expected, f"round {rounds}, seed {seed}"
    record_property("cases", killed)
