"""The next bag is loaded and augmented while the step runs, so the step never waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from marble.compute.ahead import in_order

Item = TypeVar("Item")
Loaded = TypeVar("Loaded")


def prefetch(load: Callable[[Item], Loaded], items: Sequence[Item], ahead: int = 2) -> Iterator[tuple[Item, Loaded]]:
    """Yield (item, load(item)) in order; up to `ahead` items are loaded by a worker thread in the meantime.

    Order and content do not depend on timing, so results are the same as without it.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="marble-prefetch") as pool:
        yield from zip(items, in_order(pool, load, items, ahead=ahead + 1), strict=True)
