"""Ten thousand slides that need no work: nothing in the driver grows with their number."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from marble.compute import Cluster, Done, Executor, Processes
from tests.compute.clusters import cluster_here

SLIDES, WARM = 10_000, 1_000
#: bytes that the driver may hold more after nine thousand further items
GROWTH = 1 << 20
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    pytest.importorskip("ray")
    with cluster_here():
        yield


def nothing(number: int) -> int:
    return number


@pytest.mark.parametrize("executor", [Processes(2), Cluster(workers=2)], ids=["processes", "cluster"])
def test_ten_thousand_items_cost_the_driver_nothing(
    executor: Executor, record_property: Callable[[str, object], None]
) -> None:
    held: dict[int, int] = {}
    moments: dict[int, float] = {}
    seen = 0
    tracemalloc.start()
    try:
        for outcome in executor.map(nothing, range(SLIDES)):
            assert isinstance(outcome, Done)
            seen += 1
            if seen in (WARM, SLIDES // 2, SLIDES):
                held[seen], moments[seen] = tracemalloc.get_traced_memory()[0], time.perf_counter()
    finally:
        tracemalloc.stop()
    assert seen == SLIDES
    assert held[SLIDES] - held[WARM] < GROWTH, held
    for first, last in ((WARM, SLIDES // 2), (SLIDES // 2, SLIDES)):  # told, not tested: a machine may be busy
        record_property(f"ms_per_item_{first}_{last}", 1000 * (moments[last] - moments[first]) / (last - first))
