"""A bounded queue before the work: so many at a time, so many waiting, and everyone else is told to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio.to_thread

T = TypeVar("T")


class Busy(Exception):  # noqa: N818  it is an answer, not a fault
    """The queue is full."""


class Gate:
    """Runs functions in threads, at most `workers` at a time and `queue` waiting. Sending the answer is not counted,
    so a slow reader blocks nobody.
    """

    def __init__(self, workers: int, queue: int) -> None:
        self.workers, self.queue = workers, queue
        self.inside = 0  # working and waiting; only the event loop changes it
        self._slots = asyncio.Semaphore(workers)
        self._threads = anyio.CapacityLimiter(workers)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, or `Busy` at once."""
        if self.inside >= self.workers + self.queue:
            raise Busy
        self.inside += 1
        try:
            async with self._slots:
                return await anyio.to_thread.run_sync(partial(work), limiter=self._threads)
        finally:
            self.inside -= 1
