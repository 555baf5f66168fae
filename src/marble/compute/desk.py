"""A worker process that answers questions one at a time for as long as it is needed: `Processes` without a list."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import wait
from threading import Lock
from typing import Any, Generic, Self

from marble.compute.executor import Item, Result
from marble.compute.limits import Limits
from marble.compute.spawned import Spawned, told
from marble.compute.worker import ANSWER, BEGUN, NEWS
from marble.errors import MarbleError


class DeskError(MarbleError):
    """The worker died over a question or passed its limits; what it was asked about is not to be trusted."""


class Desk(Generic[Item, Result]):
    """Asks `fn` in a spawned process. Threads that ask at the same time wait for each other.

    A worker that dies over a question is replaced, and the question asked once more; one that dies again, or passes its
    limits, is the question's fault, and the next one gets a fresh worker. What `fn` raises is raised here: errors of
    ours as they are, others as `DeskError`.

    Args:
        fn: a top-level function.
        limits: what the worker may use for one question.
        retries: how often a question is asked again whose worker died.
    """

    def __init__(self, fn: Callable[[Item], Result], limits: Limits | None = None, retries: int = 1) -> None:
        self._fn, self._limits, self._retries = _Guarded(fn), limits or Limits(), retries
        self._lock = Lock()
        self._worker: Spawned | None = None

    def ask(self, question: Item) -> Result:
        """The answer."""
        with self._lock:
            for _ in range(self._retries):
                try:
                    return self._asked(question)
                except _DiedError:
                    continue
            try:
                return self._asked(question)
            except _DiedError as end:
                raise DeskError(f"its worker died {self._retries + 1} times ({end})") from None

    def close(self) -> None:
        """End the worker; a question asked later starts another."""
        with self._lock:
            if self._worker is not None:
                self._worker.dismiss()
                self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, question: Item) -> Result:
        worker = self._ready()
        worker.give(question)
        clocks = self._limits.timeout_s, self._limits.stall_s
        try:
            while True:
                left = [end - time.monotonic() for end in worker.ends(*clocks)]
                if not wait([worker.pipe], timeout=max(0.0, min(left)) if left else None):
                    if (late := worker.late(*clocks)) is None:
                        continue
                    worker.kill()
                    raise DeskError(late)
                kind, *payload = worker.pipe.recv()
                if kind == BEGUN:
                    worker.begin()
                elif kind == NEWS:
                    worker.heard = time.monotonic()
                else:
                    assert kind == ANSWER
                    worker.state = "free"
                    worker.done += 1
                    return self._answer(*payload)
        except (EOFError, OSError):
            raise _DiedError(told(worker.ended())) from None
        finally:
            if worker.state != "free":  # dead, or interrupted in the middle: the next question starts another
                if worker.state == "working":
                    worker.kill()
                self._worker = None

    def _ready(self) -> Spawned:
        worker, most = self._worker, self._limits.items
        if worker is not None and (not worker.process.is_alive() or (most is not None and worker.done >= most)):
            worker.dismiss()
            worker = None
        self._worker = worker or Spawned.start(self._fn, None, 1, self._limits)
        return self._worker

    def _answer(self, good: bool, result: Any, _trace: str) -> Result:
        if not good:
            raise DeskError(str(result))
        if isinstance(result, MarbleError):
            raise result
        answer: Result = result
        return answer


class _DiedError(Exception):
    """How the worker ended."""


class _Guarded:
    """Returns errors of ours instead of raising them, so that they travel as they are."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn

    def __call__(self, question: Any) -> Any:
        try:
            return self.fn(question)
        except MarbleError as error:
            return error
