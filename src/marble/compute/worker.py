"""The other end of `Processes`: what a spawned worker does with the items it is sent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from marble.compute.executor import describe, heard_by
from marble.compute.limits import Limits, no_core_files

BEGUN, NEWS, ANSWER = "begun", "news", "answer"


def serve(
    fn: Callable[[Any], Any], prepare: Callable[[], object] | None, pipe: Connection, threads: int, limits: Limits
) -> None:
    """Answer every item that comes through `pipe`, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ["OMP_NUM_THREADS"] = str(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    no_core_files()
    speak = threading.Lock()  # news may come from any thread

    def send(*message: Any) -> None:
        with speak:
            pipe.send(message)

    ready = False
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if not ready:
                if prepare is not None:
                    prepare()
                limits.hold_memory()
                ready = True
            limits.hold_cpu()
            send(BEGUN)  # from here on the item is timed, not the imports before it
            with heard_by(lambda news: send(NEWS, news)):
                answer: tuple[Any, ...] = (True, fn(item), "")
        except Exception as error:  # reported to the parent, which goes on with the batch
            answer = (False, describe(error), traceback.format_exc())
        try:
            send(ANSWER, *answer)
        except OSError:
            return
        except Exception as error:  # the result cannot travel: that is the item's failure, not the worker's
            send(ANSWER, False, describe(error), traceback.format_exc())


def _end_with_parent() -> None:
    """A worker whose parent was killed stops at once, instead of writing on while a new run starts."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
