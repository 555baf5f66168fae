"""One encoder on several devices: every batch is encoded once, and no device has two at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import numpy as np
from numpy.typing import NDArray

from marble.encoders import load_encoder
from marble.encoders.loading import shared_among


def test_batches_are_shared_and_no_device_has_two_at_a_time() -> None:
    both_at_work = Barrier(2, timeout=240)
    seen: list[tuple[int, int]] = []

    def device(number: int) -> object:
        busy = Lock()

        def run(tiles: NDArray[np.uint8]) -> NDArray[np.float32]:
            assert busy.acquire(blocking=False), "two batches at once on one device"
            both_at_work.wait()  # passes only if the other device works at the same time
            seen.append((number, int(tiles[0])))
            busy.release()
            return tiles.astype(np.float32)

        return run

    run = shared_among([device(0), device(1)])  # type: ignore[list-item]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, [np.full(1, k, np.uint8) for k in range(20)]))
    assert [int(one[0]) for one in found] == list(range(20))
    assert sorted(batch for _, batch in seen) == list(range(20))
    assert {number for number, _ in seen} == {0, 1}


def test_on_a_cpu_every_thread_encodes() -> None:
    assert load_encoder("colour").feeders is None
