"""Many slides asked one by one, wherever that runs: a slide is an item, and its row is all that comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.compute import Done, Executor, describe
from marble.ensemble import Ensemble
from marble.prediction import Predictor
from marble.preparing import SlideOptions, bags_of, found_in
from marble.pseudonyms import nameless


@dataclass(frozen=True)
class Panel:
    """The runs that are asked, and how; opened once in every process that asks them.

    Args:
        runs: folders of finished runs; several answer together.
        device: where they compute: auto, cpu, cuda, cuda:N or mps.
        routed: look only at the fine tiles that the first run's router chooses, with all runs.
        budget: share of the fine tiles that it may choose.
    """

    runs: tuple[Path, ...]
    device: str = "cpu"
    routed: bool = False
    budget: float | None = None

    @property
    def opened(self) -> tuple[Predictor, Predictor | Ensemble]:
        """The first run, and what is asked: itself, or all of them together."""
        return _opened(self)


@dataclass(frozen=True)
class AskedRow:
    """What was said about one slide.

    Args:
        name: of the slide, as it was asked for.
        cells: the answer, flat; None if there is none.
        failed: why there is none.
        warnings: what the answer's reader must know.
        trained_on: that of them which says that the slide was in the training of a run.
    """

    name: str
    cells: dict[str, Any] | None = None
    failed: str | None = None
    warnings: tuple[str, ...] = ()
    trained_on: str | None = None


@dataclass(frozen=True)
class _Item:
    """A slide on its way to a worker, in few bytes: the file, or the store and the id of its bag."""

    number: int
    name: str
    path: Path
    slide_id: str | None = None


def ask_here(sources: Iterable[Path], panel: Panel, options: SlideOptions, reading: Executor) -> Iterator[AskedRow]:
    """A row for every slide of the sources, in their order; the runs are asked here, slide files read by `reading`."""
    _opened.cache_clear()  # a run may have been made again since this process last asked it
    first, _ = panel.opened
    for name, bag in bags_of(sources, first.run, options, first.routing, executor=reading):
        yield _answered(name, bag, panel)


def ask_all(sources: Iterable[Path], panel: Panel, options: SlideOptions, executor: Executor) -> Iterator[AskedRow]:
    """The same rows, with every slide read and answered by one of the executor's workers."""
    _opened.cache_clear()
    first, _ = panel.opened  # a run that cannot be opened is said once and now
    rows: dict[int, AskedRow] = {}
    items: list[_Item] = []
    found, options = found_in(sources, first.run, options)
    for number, one in enumerate(found):
        if isinstance(one, Path):
            items.append(_Item(number, options.name_of(one), one))
        elif isinstance(one[1], BagStore):
            items.append(_Item(number, one[0], one[1].root, one[0]))
        else:
            rows[number] = AskedRow(one[0], failed=describe(one[1]))
    for outcome in executor.map(partial(_ask, panel=panel, options=options), items):
        item = outcome.item
        if isinstance(outcome, Done):
            rows[item.number] = outcome.result
        else:
            known = item.path in options.ids
            reason = nameless(outcome.reason, item.path, item.name) if known else outcome.reason
            rows[item.number] = AskedRow(item.name, failed=reason)
    yield from (rows[number] for number in sorted(rows))


def _ask(item: _Item, *, panel: Panel, options: SlideOptions) -> AskedRow:
    first, _ = panel.opened
    if item.slide_id is not None:
        return _answered(item.name, BagStore(item.path).load(item.slide_id), panel)
    ((name, bag),) = bags_of([item.path], first.run, options, first.routing)
    return _answered(name, bag, panel)


def _answered(name: str, bag: Bag | Exception, panel: Panel) -> AskedRow:
    try:
        if isinstance(bag, Exception):
            raise bag
        answer = panel.opened[1].answer(bag)
    except Exception as error:  # the other slides are still answered
        return AskedRow(name, failed=describe(error))
    membership = answer.membership
    return AskedRow(
        name, answer.row(), None, answer.warnings, membership.warning if membership.part == "train" else None
    )


@lru_cache(maxsize=1)
def _opened(panel: Panel) -> tuple[Predictor, Predictor | Ensemble]:
    first = Predictor(panel.runs[0], device=panel.device, routed=panel.routed, budget=panel.budget)
    others = [Predictor(folder, device=panel.device) for folder in panel.runs[1:]]
    return first, Ensemble([first, *others]) if others else first
