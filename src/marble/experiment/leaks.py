"""Slides of two parts of a split that are one file or show the same tissue: found where bags are, and refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marble import storage
from marble.bags.lookalikes import lookalikes
from marble.bags.store import BagStore
from marble.cohorts.audit import Audit, audit
from marble.cohorts.cohort import Cohort
from marble.cohorts.splits import Split
from marble.errors import SplitError
from marble.experiment.stock import Stock


def contents_of(store: BagStore, slides: Iterable[str] | None = None) -> dict[str, str]:
    """The hash of each slide's file, where the bags' records hold it (`marble extract --hash` or a manifest).

    Without `slides`, of all that the store holds.
    """
    records = store.records() if slides is None else map(store.record, slides)
    sources = {record.slide_id: record.details.get("source") or {} for record in records}
    return {slide: source["sha256"] for slide, source in sources.items() if source.get("sha256")}


def alike_in(store: BagStore, slides: Iterable[str]) -> list[tuple[str, str]]:
    """Slides that show the same tissue; bags of a storage elsewhere are not fetched for it."""
    if storage.address(store.root) is not None:
        return []
    return [(pair.one, pair.other) for pair in lookalikes(store, slides)]


def leaks_between_parts(splits: Sequence[Split], cohort: Cohort, stock: Stock, *, allowed: bool) -> list[list[str]]:
    """What leaks in each split, in words; unless it is `allowed`, any leak is refused."""
    contents, alike = contents_of(stock.store, stock.slides), alike_in(stock.store, stock.slides)
    found = audit(splits, cohort, contents=contents, alike=alike)
    if not allowed:
        refuse(found)
    return [[one.line() for one in split.findings if one.kind == "leak"] for split in found.splits]


def refuse(found: Audit) -> None:
    """Refuse splits that leak, naming the slides, patients and parts of the first that does."""
    leaking = [split for split in found.splits if any(one.kind == "leak" for one in split.findings)]
    if leaking:
        said = "; ".join(one.line().removeprefix("leak: ") for one in leaking[0].findings if one.kind == "leak")
        raise SplitError(
            f"{said} (in {len(leaking)} of {len(found.splits)} splits)",
            where=f"split {leaking[0].number}",
            hint="Give such slides one patient in the cohort table, or leave one of them out; or say "
            "`split.allow_leaks = true` in an experiment, whose tables then say LEAKY (`allow_leaks=True` in Python)",
        )
