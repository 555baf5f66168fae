"""How things are measured: times interleaved and by median, peak memory in a process of its own.

A busy machine slows everything alike, so cases take turns and only their ratios are worth reading. Memory is the rise
of the resident set above what the process held before the call, in a fresh process per measurement:

    python -m marble.benchmarks.measure package.module:function '[arguments]'

calls `function(*arguments)`, which prepares and returns what is to be measured, and prints the rise in bytes and the
seconds it took.
"""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marble.errors import MarbleError
from marble.memory import keep_freed
from marble.pointers import pointed_at

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def interleaved(cases: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each case; one run of every case, then again, `repeats` times."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(warmup + repeats):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


def growth_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The p of cost ~ size^p that fits best in logarithms."""
    x, y = [math.log(n) for n in sizes], [math.log(c) for c in costs]
    return statistics.linear_regression(x, y).slope


def peak_memory(function: str, *arguments: Any, threads: int = 1) -> int:
    """Rise in bytes while running what `function` ("module:name") prepares, measured in a fresh process."""
    return once(function, *arguments, threads=threads)[0]


def once(function: str, *arguments: Any, threads: int = 1) -> tuple[int, float]:
    """Rise in bytes, and seconds, of running once what `function` ("module:name") prepares, in a fresh process."""
    command = [sys.executable, "-m", "marble.benchmarks.measure", function, json.dumps(arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise MarbleError(f"memory of {function}{arguments} could not be measured: {reason}")
    rise, seconds = done.stdout.strip().splitlines()[-1].split()
    return int(rise), float(seconds)


def available_bytes() -> int:
    """Memory that can be used without swapping."""
    try:
        return _kilobytes(Path("/proc/meminfo"), "MemAvailable") * 1024
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    import torch

    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _rise(run: Callable[[], object]) -> int:
    try:
        _CLEAR.write_text("5")  # forget the peak of the preparation
        before = _kilobytes(_STATUS, "VmHWM")
        run()
        return (_kilobytes(_STATUS, "VmHWM") - before) * 1024
    except OSError:  # no /proc: the peak of the whole process, which the run must exceed to be seen
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit


def _kilobytes(path: Path, field: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


def _main() -> None:
    run = pointed_at(sys.argv[1])(*json.loads(sys.argv[2]))
    keep_freed()  # not before: what the preparation freed would be used unseen
    began = time.perf_counter()
    rise = _rise(run)
    print(rise, time.perf_counter() - began)


if __name__ == "__main__":
    _main()
