"""The next bag is loaded and augmented while the step runs, so the step never waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Loaded = TypeVar("Loaded")


def prefetch(load: Callable[[Item], Loaded], items: Sequence[Item], ahead: int = 2) -> Iterator[tuple[Item, Loaded]]:
    """Yield (item, load(item)) in order; up to `ahead` items are loaded by a worker thread in the meantime.

    Order and content do not depend on timing, so results are the same as without it.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="marble-prefetch") as pool:
        waiting: list[Future[Loaded]] = [pool.submit(load, item) for item in items[:ahead]]
        try:
            for index, item in enumerate(items):
                loaded = waiting.pop(0).result()
                if index + ahead < len(items):
                    waiting.append(pool.submit(load, items[index + ahead]))
                yield item, loaded
        finally:
            for future in waiting:
                future.cancel()
