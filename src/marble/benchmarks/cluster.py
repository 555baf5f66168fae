"""`marble bench cluster`: what one worker more brings, on a cluster of this machine and without one.

The same slides go through `extract` with one and with two workers of a cluster, and with processes, each worker with
one thread. The first few slides end while workers are being started; the time of a slide is taken from those after
them, and what the first ones took longer is the time until workers stand. Items that need no work give the time to send
one and to hear of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from marble.benchmarks.measure import machine
from marble.compute import Cluster, Executor, Processes
from marble.errors import MarbleError
from marble.extract import BatchProgress, ExtractSpec, Machine, Progress, extract_many
from marble.files import publish_json
from marble.slides.lattice import PyramidSpec
from marble.synthetic.slides import write_slide

FEW, MANY, SIZE_PX = 4, 24, (4096, 4096)
QUICK_FEW, QUICK_MANY, QUICK_PX = 1, 3, (512, 512)
ITEMS, QUICK_ITEMS = 2_000, 20
WAYS: dict[str, Executor] = {
    "processes, 1": Processes(1),
    "processes, 2": Processes(2),
    "cluster, 1": Cluster(workers=1),
    "cluster, 2": Cluster(workers=2),
}


def run(json_path: str | Path | None = None, quick: bool = False) -> dict[str, Any]:
    """Measure, print a table, and write JSON to `json_path` if given; `quick` takes small slides and plain colours."""
    few, many, size = (QUICK_FEW, QUICK_MANY, QUICK_PX) if quick else (FEW, MANY, SIZE_PX)
    spec = ExtractSpec(pyramid=PyramidSpec(magnifications=(5, 20)), encoders=("colour" if quick else "lite0",))
    with TemporaryDirectory(prefix="marble-bench-") as scratch:
        root = Path(scratch)
        slides = [write_slide(root / f"slide-{i}.tiff", size, mpp=0.5, seed=i) for i in range(many)]
        ended = {way: _extracted(slides, spec, root / way, executor) for way, executor in WAYS.items()}
    rows: list[dict[str, Any]] = []
    for way, executor in WAYS.items():
        slide_s = (ended[way][-1] - ended[way][few - 1]) / (many - few)
        rows.append(
            {
                "way": way,
                "slide_s": slide_s,
                "start_s": ended[way][few - 1] - few * slide_s,
                "item_ms": 1000 * _per_item(executor, QUICK_ITEMS if quick else ITEMS),
            }
        )
    found = {row["way"]: row for row in rows}
    result = {
        "benchmark": "cluster",
        "machine": machine(),
        "slides": [few, many],
        "rows": rows,
        "speed_up": found["cluster, 1"]["slide_s"] / found["cluster, 2"]["slide_s"],
        "speed_up_of_processes": found["processes, 1"]["slide_s"] / found["processes, 2"]["slide_s"],
        "against_processes": found["cluster, 2"]["slide_s"] / found["processes, 2"]["slide_s"],
    }
    _print(result)
    if json_path is not None:
        publish_json(json_path, result)
    return result


def _extracted(slides: list[Path], spec: ExtractSpec, store: Path, executor: Executor) -> list[float]:
    """Seconds after which the first slide, the second, ... had ended."""
    began, ended = time.perf_counter(), []

    def heard(at: BatchProgress | Progress) -> None:
        if isinstance(at, BatchProgress):
            ended.append(time.perf_counter() - began)

    if not extract_many(slides, spec, store, executor=executor, machine=Machine(threads=1), on_progress=heard).ok:
        raise MarbleError("a slide of the benchmark could not be extracted")
    return ended


def _per_item(executor: Executor, items: int) -> float:
    """Seconds an item that needs no work takes, once workers stand."""
    few = items // 10
    return (_timed(lambda: _drain(executor.map(_nothing, range(items)))) -
            _timed(lambda: _drain(executor.map(_nothing, range(few))))) / (items - few)  # fmt: skip


def _nothing(number: int) -> int:
    return number


def _drain(outcomes: Iterable[object]) -> None:
    for _ in outcomes:
        pass


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _print(result: dict[str, Any]) -> None:
    table = Table("workers", "s per slide", "s until they stand", "ms per item without work")
    for row in result["rows"]:
        table.add_row(row["way"], f"{row['slide_s']:.2f}", f"{row['start_s']:.1f}", f"{row['item_ms']:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"one worker to two: {result['speed_up']:.2f} times as fast on the cluster, "
        f"{result['speed_up_of_processes']:.2f} with processes; cluster / processes {result['against_processes']:.2f}"
    )
