"""Where work runs, behind one verb: `map(fn, items)`.

An executor yields one `Done` or `Failed` per item, in whatever order they end. A failing item never ends the batch:
not by an exception, not by a worker that is killed, not by one that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

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


class Executor(Protocol):
    """Runs a top-level function over items; order-free; a failure belongs to its item."""

    def map(
        self, fn: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Done[Item, Result] | Failed[Item]]: ...


def describe(error: BaseException) -> str:
    """One line for a status table: our own messages as they are, others with their type."""
    return str(error) if isinstance(error, MarbleError) else f"{type(error).__name__}: {error}"
