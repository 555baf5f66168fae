"""Workers and drivers of a cluster that are killed: the bytes of an undisturbed run, and no process left behind."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from marble.synthetic.slides import write_slide
from tests.cli.commands import marble
from tests.compute.clusters import Killer, cluster_here
from tests.compute.test_same_bytes import experiment, results
from tests.extract.making import tree
from tests.reliability.scale import scaled

Record = Callable[[str, object], None]
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(7200)]
ON_CLUSTER = ["--workers", 2, "--ray", "auto"]
#: an item may lose its worker so often, so no round kills more; else an unlucky item would fail as it should
A_ROUND = 3
MARK = "MARBLE_TEST_MARK"
DRIVER = """
from marble.cli import main
from tests.compute.clusters import patience
with patience():
    main()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with cluster_here():
        yield


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slides")
    for number in range(8):
        write_slide(folder / f"s{number}.tiff", (3072, 2048), mpp=0.5, seed=number, pieces=2)
    return folder


def extract(slides: Path, store: Path, *flags: object) -> list[object]:
    settings = ["--magnifications", "5,20", "--tile-px", 64, "--encoder", "colour"]
    return ["extract", slides, "--store", store, *settings, *flags]


@pytest.mark.usefixtures("cluster")
def test_workers_killed_during_extract_change_nothing(slides: Path, tmp_path: Path, record_property: Record) -> None:
    assert marble(*extract(slides, tmp_path / "whole")).code == 0
    expected, kills, killed, rng = tree(tmp_path / "whole"), scaled(30), 0, random.Random(0)
    for number in range(10 * kills):
        if killed == kills:
            break
        with Killer(min(A_ROUND, kills - killed), rng, pause_s=2.0) as killer:
            ended = marble(*extract(slides, tmp_path / str(number), *ON_CLUSTER))
        assert ended.code == 0, ended.err
        assert tree(tmp_path / str(number)) == expected, number
        killed += killer.killed
    assert killed == kills
    record_property("cases", killed)


@pytest.mark.usefixtures("cluster")
def test_workers_killed_during_run_change_nothing(tmp_path: Path, record_property: Record) -> None:
    file = experiment(tmp_path, epochs=6)
    assert marble("run", file, "--out", tmp_path / "whole").code == 0
    expected, kills, killed, rng = results(tmp_path / "whole"), scaled(10), 0, random.Random(0)
    for number in range(10 * kills):
        if killed == kills:
            break
        with Killer(min(A_ROUND, kills - killed), rng, pause_s=4.0) as killer:
            ended = marble("run", file, "--out", tmp_path / str(number), *ON_CLUSTER)
        assert ended.code == 0, ended.err
        assert results(tmp_path / str(number)) == expected, number
        killed += killer.killed
    assert killed == kills
    record_property("cases", killed)


def marked(mark: str) -> list[psutil.Process]:
    """Processes that were started below a command with this mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def count(store: Path) -> int:
    return len(list(store.rglob("*.safetensors")))


def test_a_driver_that_is_killed_loses_nothing_and_leaves_nobody(
    slides: Path, tmp_path: Path, record_property: Record
) -> None:
    assert marble(*extract(slides, tmp_path / "whole")).code == 0
    expected, kills, rng = tree(tmp_path / "whole"), scaled(10), random.Random(0)
    store, mark = tmp_path / "store", secrets.token_hex(8)
    words = [str(word) for word in extract(slides, store, *ON_CLUSTER)]
    command = [sys.executable, "-c", DRIVER, *words]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {MARK: mark, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    killed = 0
    while killed < kills:
        driver = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        enough = count(store) + 2
        moment = time.monotonic() + rng.uniform(5, 120)
        while driver.poll() is None and time.monotonic() < moment and count(store) < enough:
            time.sleep(0.01)  # in the middle of its work, or at some moment before it
        driver.send_signal(signal.SIGKILL)
        killed += driver.wait() == -signal.SIGKILL
        deadline = time.monotonic() + 120
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert [process.cmdline() for process in marked(mark)] == []
        if count(store) == 8:
            assert subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 0
            assert tree(store) == expected
            store = tmp_path / f"store-{killed}"
            command[command.index("--store") + 1] = str(store)
    assert subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 0
    assert tree(store) == expected
    record_property("cases", killed)
