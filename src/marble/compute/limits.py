"""What a worker may use. A decoder that meets a hostile file is stopped by the system, not by its good will.

Address space is counted from where the worker stands when its libraries and weights are loaded: torch alone reserves
gigabytes of addresses that it never touches, and more on a GPU.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass

GIB = 1 << 30
MAX_THREADS = 1024  # of one process; with absurdly many the library of threads ends the program


@dataclass(frozen=True)
class Limits:
    """Of one worker process.

    Args:
        memory_bytes: address space beyond what the worker started with; None for no limit.
        cpu_s: processor time for one item, over all threads; None for no limit.
        timeout_s: time for one item by the clock; None for no limit.
        stall_s: time by the clock without any news from an item; None for no limit.
        items: a worker is replaced after so many, which ends whatever a decoder leaks.
    """

    memory_bytes: int | None = None
    cpu_s: float | None = None
    timeout_s: float | None = None
    stall_s: float | None = None
    items: int | None = None

    def hold_memory(self) -> None:
        """From now on this process may take `memory_bytes` more addresses than it has."""
        taken = _addresses_taken()
        if self.memory_bytes is None or taken is None:
            return
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = taken + self.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))

    def hold_cpu(self) -> None:
        """From now on this process may take `cpu_s` more seconds of processor time; then the system ends it."""
        if self.cpu_s is None or sys.platform == "win32":
            return
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        wanted = math.ceil(used.ru_utime + used.ru_stime + self.cpu_s)
        resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard < 0 else min(wanted, hard), hard))


def no_core_files() -> None:
    """A crash is an outcome here, not something to write gigabytes about."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _addresses_taken() -> int | None:
    """Bytes of address space in use; None where the system does not say (and does not keep the limit either)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
