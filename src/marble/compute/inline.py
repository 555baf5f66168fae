"""Work in this process, one item after another."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator

from marble.compute.executor import Done, Failed, Item, Result, cores_here, describe


class Inline:
    """Run everything in this process, in order."""

    @property
    def cores_each(self) -> int:
        return cores_here()

    def map(self, fn: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Done[Item, Result] | Failed[Item]]:
        for item in items:
            try:
                result = fn(item)
            except Exception as error:  # the batch must go on, whatever one item does
                yield Failed(item, describe(error), traceback.format_exc())
            else:
                yield Done(item, result)
