"""The cluster keeps the executors' contract: one outcome per item, whatever happens to its worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marble.compute import Cluster, Done, Failed
from marble.errors import InputError, UnavailableError
from tests.compute.clusters import cluster_here
from tests.compute.test_executors import misbehave, square_or_fail

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this machine alone, started once for all tests of this file."""
    with cluster_here():
        yield


def threads_of_worker(_: int) -> str:
    return os.environ["OMP_NUM_THREADS"]


def die_once(mark: str) -> str:
    """The first worker that is given this item is lost."""
    if not Path(mark).exists():
        Path(mark).touch()
        os._exit(1)
    return "done"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("cluster")
class TestContract:
    def test_a_failure_belongs_to_its_item(self) -> None:
        outcomes = {o.item: o for o in Cluster(workers=2).map(square_or_fail, range(8))}
        assert {x: o.result for x, o in outcomes.items() if isinstance(o, Done)} == {
            x: x * x for x in (0, 1, 2, 5, 6, 7)
        }
        three, four = outcomes[3], outcomes[4]
        assert isinstance(three, Failed)
        assert isinstance(four, Failed)
        assert three.reason == "slide-3.svs: no pixel size. Give it with --mpp-csv"
        assert four.reason == "ZeroDivisionError: oops"

    def test_an_item_whose_worker_was_lost_is_given_to_another(self, tmp_path: Path) -> None:
        marks = [str(tmp_path / f"{k}") for k in range(3)]
        assert [type(o) for o in Cluster(workers=2).map(die_once, marks)] == [Done, Done, Done]

    def test_an_item_that_loses_every_worker_is_one_failed_item(self, tmp_path: Path) -> None:
        tasks = [("exit", str(tmp_path / "a")), ("fine", str(tmp_path / "b"))]
        outcomes = {o.item[0]: o for o in Cluster(workers=1, retries=1).map(misbehave, tasks)}
        assert isinstance(outcomes["fine"], Done)
        assert isinstance(outcomes["exit"], Failed)
        assert "its worker was lost 2 times" in outcomes["exit"].reason
        assert (tmp_path / "a").read_text() == "xx"

    def test_a_worker_that_hangs_is_stopped(self, tmp_path: Path) -> None:
        tasks = [("hang", str(tmp_path / "a"))]
        (outcome,) = Cluster(workers=1, timeout_s=5).map(misbehave, tasks)
        assert isinstance(outcome, Failed)
        assert "no answer within 5 s" in outcome.reason

    def test_cores_of_a_worker_are_its_threads(self) -> None:
        (outcome,) = Cluster(workers=1, cpus=2).map(threads_of_worker, [0])
        assert isinstance(outcome, Done)
        assert outcome.result == "2"

    def test_a_worker_larger_than_the_cluster_is_refused(self) -> None:
        with pytest.raises(UnavailableError, match="has 2 cores and 0 GPUs, a worker needs 1 and 1"):
            list(Cluster(gpus=1).map(square_or_fail, [1]))

    def test_a_consumer_that_stops_leaves_no_worker_behind(self, tmp_path: Path) -> None:
        outcomes = Cluster(workers=2).map(misbehave, [("fine", str(tmp_path / "a")), ("hang", str(tmp_path / "b"))])
        assert isinstance(next(outcomes), Done)
        outcomes.close()  # type: ignore[attr-defined]
        deadline = time.monotonic() + 60
        while ray.available_resources().get("CPU", 0) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ray.available_resources()["CPU"] == 2


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="workers must be at least 1"):
        Cluster(workers=0)
    with pytest.raises(InputError, match="cpus > 0"):
        Cluster(cpus=0)


def test_an_open_cluster_is_refused_before_it_is_started() -> None:
    code = "from marble.compute import Cluster; list(Cluster().map(print, [1]))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "RAY_AUTH_MODE=disabled would open the cluster to everybody" in done.stderr


def test_importing_compute_does_not_import_ray() -> None:
    code = "import marble.compute, sys; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
