"""Where work runs, behind one verb: `map(fn, items)`.

An executor yields one `Done` or `Failed` per item, in whatever order they end. A failing item never ends the batch:
not by an exception, not by a worker that is killed, not by one that hangs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from marble.errors import MarbleError

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Item, Result]):
    """An item that ended well."""

    item: Item
    result: Result


@dataclass(frozen=True)
class Failed(Generic[Item]):
    """An item that did not; `reason` is fit to print, `trace` is for whoever has to mend it."""

    item: Item
    reason: str
    trace: str = field(default="", repr=False)


#: hears what an item under way tells; set by whatever runs it
_listener: Callable[[Any], None] | None = None


def tell(news: Any) -> None:
    """Say from inside an item how far it is; an executor that does not care drops it."""
    if _listener is not None:
        _listener(news)


@contextmanager
def heard_by(listener: Callable[[Any], None] | None) -> Iterator[None]:
    """Within this block, `tell` reaches `listener`."""
    global _listener  # noqa: PLW0603  one item at a time in a process; a context variable would not reach its threads
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


class Executor(Protocol):
    """Runs a top-level function over items; order-free; a failure belongs to its item."""

    @property
    def cores_each(self) -> int:
        """How many cores an item has for itself, so that those side by side do not fight for them."""
        ...

    def map(
        self, fn: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Done[Item, Result] | Failed[Item]]: ...


def describe(error: BaseException) -> str:
    """One line for a status table: our own messages as they are, others with their type."""
    if isinstance(error, MarbleError):
        return str(error)
    if isinstance(error, MemoryError):
        return "needs more memory than its worker may use; if the slide is sound, allow more"
    return f"{type(error).__name__}: {error}"
