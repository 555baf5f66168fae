"""`marble bench train`: what a training epoch of MARBLE spends outside the model's own forward and backward.

`fit` runs as it always does, on a made-up store of two-level bags; a stopwatch is put around the calls of its loop
from outside. Seconds per epoch, median over the epochs after the first, in which every bag is hashed once:

    waiting      for the worker to hand over the next bag (loaded, sorted, coarse branches dropped, shuffled)
    forward      the model
    loss         of its output
    backward     the gradients
    optimiser    clipping, AdamW, clearing the gradients
    rest         of the training epoch

    worker       loading and augmenting, in a thread beside the step: not part of the epoch unless it is waited for
    validation   the prediction of the validation slides, and its metrics
    checkpoint   weights, optimiser state and history, written and forced to disk once per epoch

`overhead` is 1 - (forward + backward) / the training epoch. A checkpoint costs the same whether an epoch has eight
slides or eight hundred, so it is given beside it, and with it as `overhead_with_checkpoint` for this small epoch.

`small_step`: how many times cheaper a step of the recipe for small cohorts is, on bags of their sizes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from marble.bags.augment import generator
from marble.bags.bag import Bag, Level
from marble.bags.store import BagStore
from marble.benchmarks.measure import machine
from marble.benchmarks.small_step import TARGET as TIMES_CHEAPER
from marble.benchmarks.small_step import small_step
from marble.files import publish_json
from marble.models import COMMON, BagModel
from marble.training import loop as loop_module
from marble.training.fit import fit
from marble.training.job import CaseSpec, FitJob, TargetSpec, TaskSpec
from marble.training.loop import TrainingLoop
from marble.training.optim import Optimizer
from marble.training.prefetch import prefetch

DIM, RATIO = 1024, 4
TOKENS, QUICK_TOKENS = 4096, 256
TRAIN_BAGS, QUICK_TRAIN_BAGS, VAL_BAGS = 8, 2, 2
EPOCHS, QUICK_EPOCHS = 4, 2
TARGET, STRETCH = 0.15, 0.08
IN_EPOCH = ("waiting", "forward", "loss", "backward", "optimiser")
CLASSES = ("a", "b")


def run(json_path: str | Path | None = None, quick: bool = False) -> dict[str, Any]:
    """Measure, print a table, and write JSON if asked."""
    tokens = QUICK_TOKENS if quick else TOKENS
    bags = QUICK_TRAIN_BAGS if quick else TRAIN_BAGS
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with TemporaryDirectory(prefix="marble-bench-") as scratch:
        job = make_job(Path(scratch) / "bags", tokens, bags, QUICK_EPOCHS if quick else EPOCHS, threads)
        watch = Stopwatch()
        try:
            with watch.around_training():
                fit(job, Path(scratch) / "fit")
        finally:
            torch.use_deterministic_algorithms(deterministic)
    seconds = seconds_per_epoch(watch.events)
    result: dict[str, Any] = {
        "benchmark": "train",
        "quick": quick,
        "machine": machine(),
        "model": "marble",
        "dim": DIM,
        "tokens": tokens,
        "train_bags": bags,
        "val_bags": VAL_BAGS,
        "seconds": seconds,
        **overheads(seconds),
        "target": f"<= {TARGET:g}",
        "stretch": f"<= {STRETCH:g}",
        "small_step": small_step(_bag, DIM, repeats=3 if quick else 25),
    }
    _print(result)
    if json_path is not None:
        publish_json(json_path, result)
    return result


# ---- what is trained -----------------------------------------------------------------------------------------------


def make_job(folder: Path, tokens: int, train_bags: int, epochs: int, threads: int) -> FitJob:
    """Two-level float16 bags in a store, half of each class, and MARBLE under the common recipe."""
    store = BagStore(folder)
    parts: dict[str, list[CaseSpec]] = {"train": [], "val": []}
    for part, count in (("train", train_bags), ("val", VAL_BAGS)):
        for i in range(count):
            name = f"{part}-{i}"
            store.save(_bag(name, tokens))
            target = TargetSpec(label=CLASSES[i % 2])
            parts[part].append(CaseSpec(case_id=name, slides=(name,), target=target))
    return FitJob(
        model="marble",
        dim=DIM,
        task=TaskSpec(name="classification", classes=CLASSES),
        recipe=replace(COMMON, epochs=epochs, warmup=1, patience=epochs),
        store=str(folder),
        bags_sha256="made-up",
        train=tuple(parts["train"]),
        val=tuple(parts["val"]),
        split="bench",
        threads=threads,
    )


def _bag(name: str, tokens: int) -> Bag:
    """A square of fine tiles and the coarse tiles above them, row by row, as extraction stores them."""
    rng = generator("bench-train", name)
    side = round(tokens**0.5)
    fine = torch.cartesian_prod(torch.arange(side), torch.arange(side))  # (T, 2)
    wide = -(-side // RATIO)
    coarse = torch.cartesian_prod(torch.arange(wide), torch.arange(wide))
    parent = fine[:, 0] // RATIO * wide + fine[:, 1] // RATIO
    features = [torch.randn(len(cells), DIM, generator=rng).half() for cells in (coarse, fine)]
    return Bag(name, [Level(features[0], coarse), Level(features[1], fine, parent, RATIO)])


# ---- the stopwatch -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One timed call."""

    what: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def within(self, other: Event) -> bool:
        return other.began <= self.began and self.ended <= other.ended


class Stopwatch:
    """Notes when calls begin and end, without a change to the code that makes them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def timed(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.events.append(Event(what, began, time.perf_counter()))

        return call

    def timed_iterator(self, what: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = function(*args, **kwargs)
            advance = self.timed(what, lambda: next(items, None))
            while (item := advance()) is not None:
                yield item

        return iterate

    @contextmanager
    def around_training(self) -> Iterator[None]:
        """Every call of the loop that is to be told apart, timed while this lasts."""
        owners: list[tuple[Any, str, str]] = [
            (TrainingLoop, "_train_epoch", "epoch"),
            (TrainingLoop, "_validate", "validation"),
            (TrainingLoop, "_save", "checkpoint"),
            (TrainingLoop, "_augmented", "worker"),
            (TrainingLoop, "_group_loss", "loss"),
            (BagModel, "__call__", "forward"),
            (torch.autograd, "backward", "backward"),
            (Optimizer, "step", "optimiser"),
        ]
        with ExitStack() as stack:
            for owner, name, what in owners:
                stack.enter_context(patch.object(owner, name, self.timed(what, getattr(owner, name))))
            iterator = self.timed_iterator("waiting", prefetch)
            stack.enter_context(patch.object(loop_module, "prefetch", iterator))
            yield


def seconds_per_epoch(events: Sequence[Event]) -> dict[str, float]:
    """Median seconds of each component per epoch, over all epochs but the first."""
    epochs = [event for event in events if event.what == "epoch"]
    later = epochs[1:]
    inside = {
        what: [sum(e.seconds for e in events if e.what == what and e.within(epoch)) for epoch in later]
        for what in (*IN_EPOCH, "worker")
    }
    rest = [epoch.seconds - sum(inside[what][i] for what in IN_EPOCH) for i, epoch in enumerate(later)]
    after = {
        what: [e.seconds for e in events if e.what == what and e.began >= later[0].ended]
        for what in ("validation", "checkpoint")
    }
    every = {"epoch": [epoch.seconds for epoch in later], **inside, "rest": rest, **after}
    return {what: median(values) for what, values in every.items()}


def overheads(seconds: dict[str, float]) -> dict[str, Any]:
    """Shares of the time that are not the model's."""
    model = seconds["forward"] + seconds["backward"]
    overhead = 1 - model / seconds["epoch"]
    return {
        "overhead": overhead,
        "overhead_with_checkpoint": 1 - model / (seconds["epoch"] + seconds["checkpoint"]),
        "met": overhead <= TARGET,
    }


def _print(result: dict[str, Any]) -> None:
    console, seconds = Console(), result["seconds"]
    title = f"MARBLE, D = {DIM}, {result['train_bags']} bags of {result['tokens']} fine tokens: one training epoch"
    table = Table(title=title)
    for heading in ("part", "seconds", "share"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for what in (*IN_EPOCH, "rest", "epoch"):
        table.add_row(what, f"{seconds[what]:.3f}", f"{seconds[what] / seconds['epoch']:.1%}")
    console.print(table)
    beside = ", ".join(f"{what} {seconds[what]:.3f} s" for what in ("worker", "validation", "checkpoint"))
    console.print(f"beside it: {beside}")
    console.print(
        f"outside forward and backward: {result['overhead']:.1%} (target {result['target']}, stretch "
        f"{result['stretch']}); with the checkpoint of this small epoch {result['overhead_with_checkpoint']:.1%}"
    )
    for row in result["small_step"]:
        console.print(
            f"a step of the small recipe on {row['tokens']} fine tokens: {row['small'] * 1e3:.1f} ms against "
            f"{row['paper'] * 1e3:.1f} ms, {row['times_cheaper']:.1f} times cheaper (target {TIMES_CHEAPER:g})"
        )
