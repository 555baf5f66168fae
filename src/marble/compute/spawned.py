"""One spawned worker, seen from its parent: started, given items, timed, ended."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Literal

from marble.compute.limits import Limits
from marble.compute.worker import serve

#: seconds a worker may take to start and to load what it needs, before its first item is timed
START_S = 1800.0


class Spawned:
    """A worker process and the pipe to it."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.item: Any = None
        self.state: Literal["working", "free", "dead"] = "free"
        self.tries = self.done = 0
        self.began = self.heard = 0.0
        self.begun = False  # whether the item is under way, or the worker still starting

    @classmethod
    def start(
        cls, fn: Callable[[Any], Any], prepare: Callable[[], object] | None, threads: int, limits: Limits
    ) -> Spawned:
        """A new process; OSError if the system has no room for one."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(fn, prepare, theirs, threads, limits), daemon=True)
        try:
            process.start()
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours)

    def give(self, item: Any, tries: int = 0) -> None:
        self.item, self.tries, self.state = item, tries, "working"
        self.begin()
        self.begun = False
        with suppress(OSError):  # it died before it could read; its end is seen at the next look
            self.pipe.send(item)

    def begin(self) -> None:
        """The item is under way: its time counts from now."""
        self.began = self.heard = time.monotonic()
        self.begun = True

    def ends(self, whole: float | None, silence: float | None) -> Iterator[float]:
        """The moments at which its time will be over."""
        if not self.begun:
            yield self.began + START_S
            return
        if whole is not None:
            yield self.began + whole
        if silence is not None:
            yield self.heard + silence

    def late(self, whole: float | None, silence: float | None) -> str | None:
        """Why it has to be stopped; None if its time is not over."""
        now = time.monotonic()
        if not self.begun:
            return None if now - self.began < START_S else f"its worker did not start within {START_S:g} s"
        if whole is not None and now - self.began >= whole:
            return f"no answer within {whole:g} s; its worker was stopped"
        if silence is not None and now - self.heard >= silence:
            return f"nothing moved for {silence:g} s; its worker was stopped"
        return None

    def ended(self) -> int | None:
        """The exit code of a worker that closed its pipe."""
        self.state = "dead"
        self.process.join(timeout=10)
        if self.process.is_alive():  # it closed its pipe and stays: of no more use
            self.kill()
        return self.process.exitcode if isinstance(self.process.exitcode, int) else None

    def dismiss(self) -> None:
        self.pipe.close()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.kill()

    def kill(self) -> None:
        self.state = "dead"
        self.process.kill()
        self.process.join()


def told(code: int | None) -> str:
    """An exit code in words."""
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
