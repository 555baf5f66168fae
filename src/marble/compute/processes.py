"""Work in spawned processes: slide handles and BLAS threads do not survive a fork."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from marble.compute.executor import Done, Failed, Item, Result, cores_here, describe
from marble.compute.limits import Limits
from marble.compute.spawned import Spawned, told
from marble.compute.worker import ANSWER, BEGUN, NEWS
from marble.errors import InputError

#: ends of a worker that another try would only repeat: out of processor time
_FINAL = frozenset({-signal.SIGXCPU} if hasattr(signal, "SIGXCPU") else ())


@dataclass(frozen=True)
class Processes:
    """Run items in `workers` spawned processes.

    A worker that dies (a decoder's segmentation fault, the out-of-memory killer) or passes its limits costs only its
    item: the item is tried once more in a fresh worker if the worker died, and then reported as failed.

    Args:
        workers: how many run side by side.
        timeout_s: time for one item; the same as `Limits.timeout_s`.
        retries: how often an item is tried again whose worker died.
        threads_per_worker: what OpenMP is told.
        limits: what a worker may use.
        prepare: called in a new worker before its memory is limited, for example to load weights.
        on_news: hears (item, news) of what items tell while they run.
    """

    workers: int
    timeout_s: float | None = None
    retries: int = 1
    threads_per_worker: int = 1
    limits: Limits = field(default_factory=Limits)
    prepare: Callable[[], object] | None = None
    on_news: Callable[[Any, Any], None] | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"workers must be at least 1, got {self.workers}")

    @property
    def cores_each(self) -> int:
        return max(1, cores_here() // self.workers)

    @property
    def _clocks(self) -> tuple[float | None, float | None]:
        """Seconds that an item, and its silence, may last."""
        return self.limits.timeout_s if self.timeout_s is None else self.timeout_s, self.limits.stall_s

    def map(self, fn: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Done[Item, Result] | Failed[Item]]:
        waiting: deque[tuple[Item, int]] = deque((item, 0) for item in items)
        busy: list[Spawned] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < self.workers:
                    item, tries = waiting.popleft()
                    started = self._start(fn, item, tries)
                    if isinstance(started, Failed):
                        yield started
                    else:
                        busy.append(started)
                for worker in self._moved(busy):
                    outcome = self._collect(worker, waiting)
                    if outcome is not None:
                        yield outcome
                    if worker.state == "working":
                        continue
                    if waiting and worker.state == "free" and not self._is_spent(worker):
                        worker.give(*waiting.popleft())
                    else:
                        busy.remove(worker)
                        worker.dismiss()
        finally:  # also when the consumer stops early or is interrupted
            for worker in busy:
                worker.kill()

    def _is_spent(self, worker: Spawned) -> bool:
        return not worker.process.is_alive() or (self.limits.items is not None and worker.done >= self.limits.items)

    def _start(self, fn: Callable[[Any], Any], item: Any, tries: int) -> Spawned | Failed[Any]:
        try:
            worker = Spawned.start(fn, self.prepare, self.threads_per_worker, self.limits)
        except OSError as error:  # no memory or no process left: the batch goes on with what it has
            return Failed(item, f"no worker could be started: {describe(error)}")
        worker.give(item, tries)
        return worker

    def _moved(self, busy: list[Spawned]) -> list[Spawned]:
        """Wait until a worker has said something, died, or run out of time."""
        ends = [end for worker in busy for end in worker.ends(*self._clocks)]
        left = max(0.0, min(ends) - time.monotonic()) if ends else None
        ready = set(wait([worker.pipe for worker in busy], timeout=left))
        return [w for w in busy if w.pipe in ready or w.late(*self._clocks) is not None]

    def _collect(self, worker: Spawned, waiting: deque[tuple[Any, int]]) -> Done[Any, Any] | Failed[Any] | None:
        late = worker.late(*self._clocks)
        try:
            if not worker.pipe.poll():
                if late is None:
                    return None
                worker.kill()
                return Failed(worker.item, late)
            kind, *payload = worker.pipe.recv()
        except (EOFError, OSError):  # it ended: cleanly, or (reset, broken pipe) before it had read its item
            return self._died(worker, waiting)
        if kind == BEGUN:
            worker.begin()
            return None
        if kind == NEWS:
            worker.heard = time.monotonic()
            if self.on_news is not None:
                self.on_news(worker.item, payload[0])
            return None
        assert kind == ANSWER
        worker.done += 1
        worker.state = "free"
        good, result, trace = payload
        return Done(worker.item, result) if good else Failed(worker.item, result, trace)

    def _died(self, worker: Spawned, waiting: deque[tuple[Any, int]]) -> Failed[Any] | None:
        code = worker.ended()
        if code in _FINAL:
            return Failed(
                worker.item, f"took more than {self.limits.cpu_s:g} s of processor time; its worker was ended"
            )
        if worker.tries < self.retries:
            waiting.appendleft((worker.item, worker.tries + 1))
            return None
        return Failed(worker.item, f"its worker died {worker.tries + 1} times ({told(code)})")
