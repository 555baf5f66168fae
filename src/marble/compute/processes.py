"""Work in spawned processes: slide handles and BLAS threads do not survive a fork."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from marble.compute.executor import Done, Failed, Item, Result, describe
from marble.errors import InputError


@dataclass(frozen=True)
class Processes:
    """Run items in `workers` spawned processes.

    A worker that dies (a decoder's segmentation fault, the out-of-memory killer) or exceeds `timeout_s` costs only its
    item: the item is tried once more in a fresh worker if the worker died, and then reported as failed.
    """

    workers: int
    timeout_s: float | None = None
    retries: int = 1
    threads_per_worker: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"workers must be at least 1, got {self.workers}")

    def map(self, fn: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Done[Item, Result] | Failed[Item]]:
        waiting: deque[tuple[Item, int]] = deque((item, 0) for item in items)
        busy: list[_Worker] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < self.workers:
                    busy.append(self._start(fn, *waiting.popleft()))
                for worker in self._ended(busy):
                    outcome = self._collect(worker, waiting)
                    if outcome is not None:
                        yield outcome
                    if waiting and worker.process.is_alive():
                        worker.give(*waiting.popleft())
                    else:
                        busy.remove(worker)
                        worker.dismiss()
        finally:  # also when the consumer stops early or is interrupted
            for worker in busy:
                worker.kill()

    def _start(self, fn: Callable[[Any], Any], item: Any, tries: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(fn, theirs, self.threads_per_worker), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        worker.give(item, tries)
        return worker

    def _ended(self, busy: list[_Worker]) -> list[_Worker]:
        """Wait until a worker has answered, died, or run out of time."""
        left = None
        if self.timeout_s is not None:
            left = max(0.0, min(worker.began for worker in busy) + self.timeout_s - time.monotonic())
        ready = set(wait([worker.pipe for worker in busy], timeout=left))
        now = time.monotonic()
        late = [w for w in busy if self.timeout_s is not None and now - w.began >= self.timeout_s]
        return [w for w in busy if w.pipe in ready or w in late]

    def _collect(self, worker: _Worker, waiting: deque[tuple[Any, int]]) -> Done[Any, Any] | Failed[Any] | None:
        if not worker.pipe.poll():
            worker.kill()
            return Failed(worker.item, f"no answer within {self.timeout_s:g} s; its worker was stopped")
        try:
            good, *payload = worker.pipe.recv()
        except EOFError:
            worker.process.join()
            if worker.tries < self.retries:
                waiting.appendleft((worker.item, worker.tries + 1))
                return None
            return Failed(worker.item, f"its worker died {worker.tries + 1} times ({_exit(worker.process.exitcode)})")
        return Done(worker.item, payload[0]) if good else Failed(worker.item, payload[0], payload[1])


class _Worker:
    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.item: Any = None
        self.tries = 0
        self.began = 0.0

    def give(self, item: Any, tries: int) -> None:
        self.item, self.tries, self.began = item, tries, time.monotonic()
        self.pipe.send(item)

    def dismiss(self) -> None:
        self.pipe.close()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(fn: Callable[[Any], Any], pipe: Connection, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ["OMP_NUM_THREADS"] = str(threads)
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[Any, ...] = (True, fn(item))
        except Exception as error:  # reported to the parent, which goes on with the batch
            answer = (False, describe(error), traceback.format_exc())
        try:
            pipe.send(answer)
        except (BrokenPipeError, OSError):
            return


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
