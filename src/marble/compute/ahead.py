"""Run ahead in order: what comes next is worked on in threads, and given out in the order it was asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from marble.compute.executor import Item, Result


def in_order(
    pool: ThreadPoolExecutor, fn: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Iterator[Result]:
    """`map` that runs at most `ahead` items in advance and yields in their order, whichever ends first."""
    running: deque[Future[Result]] = deque()
    try:
        for item in items:
            running.append(pool.submit(fn, item))
            if len(running) >= ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:  # after an error nothing may go on reading what is about to be closed
        for future in running:
            if not future.cancel():
                future.exception()
