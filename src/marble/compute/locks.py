"""Who is at work on a folder or a slide: a lock file with host, process and a heartbeat.

A lock is a small JSON file that is there as long as its holder works; its time stamp is renewed every few seconds. A
holder that died is recognised at once on its own machine (its process is gone), and on others after a minute without
a heartbeat, by the clock of the file system they share. Only then is its lock taken over; a live one never is.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble import files
from marble.errors import InputError, MarbleError

BEAT_S = 5.0
STALE_S = 60.0
POLL_S = 0.2
SUFFIX = ".lock"


class BusyError(InputError):
    """Somebody else is at work there."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock; `started` tells a process from a later one with the same number."""

    host: str
    name: str
    pid: int
    started: str
    token: str

    @classmethod
    def this_process(cls) -> Holder:
        pid = os.getpid()
        return cls(files.HOST, socket.gethostname(), pid, _started(pid), secrets.token_hex(8))

    @classmethod
    def of(cls, path: Path) -> Holder | None:
        """The holder named in a lock file; None if the file cannot be understood."""
        try:
            found = files.read_json(path, dict)
            texts = [found[key] for key in ("host", "name", "started", "token")]
            pid = found["pid"]
        except (MarbleError, KeyError):
            return None
        if type(pid) is not int or pid <= 0 or not all(isinstance(text, str) for text in texts):
            return None
        return cls(texts[0], texts[1], pid, texts[2], texts[3])

    @property
    def is_gone(self) -> bool:
        """Whether this was a process of this machine that has ended."""
        return self.host == files.HOST and (not files.is_alive(self.pid) or _started(self.pid) != self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.name}"


@contextmanager
def hold(
    path: str | Path, what: str, *, wait: bool = False, on_wait: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the lock at `path` for this block.

    Args:
        path: of the lock file, whose name ends in `.lock`.
        what: is locked, for the error.
        wait: for a living holder to end; else `BusyError` says who it is.
        on_wait: told who is waited for, again and again.
    """
    lock = Path(path)
    files.make_folder(lock.parent)
    me = Holder.this_process()
    while not _claim(lock, me):
        holder = Holder.of(lock)
        if _is_stale(lock, holder):
            _take_away(lock, holder)
            continue
        who = "another process" if holder is None else str(holder)
        if not wait:
            raise BusyError(f"{what} is being worked on by {who}", where=lock.parent, hint="Wait until it has ended")
        if on_wait is not None:
            on_wait(who)
        time.sleep(POLL_S)
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(lock, me, ended), daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()
        if Holder.of(lock) == me:
            with suppress(OSError):
                lock.unlink(missing_ok=True)


def sweep(folder: str | Path) -> int:
    """Remove the locks of processes that have ended; return how many."""
    removed = 0
    root = Path(folder)
    for lock in root.glob(f".*{SUFFIX}") if root.is_dir() else ():
        holder = Holder.of(lock)
        if _is_stale(lock, holder):
            removed += _take_away(lock, holder)
    return removed


def _claim(lock: Path, me: Holder) -> bool:
    """Put our lock file there, whole, unless there is one."""
    part = lock.parent / f".{me.host}.{me.pid}.{me.token[:8]}{files.PART}"
    try:
        part.write_text(json.dumps(vars(me)))
        os.link(part, lock)  # unlike a rename, fails if there is one
    except FileExistsError:
        return False
    except OSError:
        try:  # a file system without links
            with open(lock, "x") as file:
                file.write(json.dumps(vars(me)))
        except FileExistsError:
            return False
        except OSError as error:
            raise files.cannot_write(error, lock) from error
    finally:
        part.unlink(missing_ok=True)
    return True


def _is_stale(lock: Path, holder: Holder | None) -> bool:
    """Whether a lock's holder has ended."""
    if holder is not None and holder.host == files.HOST:
        return holder.is_gone
    return _age(lock) > STALE_S


def _age(lock: Path) -> float:
    """Seconds since the last heartbeat, by the clock of the file system; 0 if the lock is gone."""
    probe = lock.parent / f".{files.HOST}.{os.getpid()}.{secrets.token_hex(4)}{files.PART}"
    try:
        probe.touch()
        return probe.stat().st_mtime - lock.stat().st_mtime
    except OSError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _take_away(lock: Path, holder: Holder | None) -> bool:
    """Remove a stale lock. Of several who try, one does: else the second could remove the first one's new lock."""
    taking = lock.with_name(f"{lock.name}.taking")
    try:
        os.close(os.open(taking, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        if _age(taking) > STALE_S:  # whoever was taking it away was killed in the middle
            taking.unlink(missing_ok=True)
        time.sleep(POLL_S / 10)
        return False
    try:
        if Holder.of(lock) != holder or not _is_stale(lock, holder):
            return False
        lock.unlink(missing_ok=True)
        return True
    finally:
        taking.unlink(missing_ok=True)


def _beat(lock: Path, me: Holder, ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        with suppress(OSError):
            if Holder.of(lock) == me:
                os.utime(lock)


def _started(pid: int) -> str:
    """When a process of this machine started, in the system's own words; empty where it does not say."""
    try:
        stat: Any = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return str(stat.rpartition(")")[2].split()[19])
