"""`Stock`: which of a cohort's slides have a bag that can be used, and the account of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marble import storage
from marble.bags.record import BagRecord
from marble.bags.shapes import odd_ones_out
from marble.bags.store import BagStore
from marble.bags.survey import damage
from marble.cohorts.cohort import Cohort
from marble.errors import IntegrityError, MarbleError
from marble.training.results import read_run

NO_BAG, DAMAGED, ODD = "no bag in the store", "with a damaged bag", "with a bag of another shape than most"


@dataclass(frozen=True)
class Stock:
    """The bags there are, and the account of the cohort's slides: in = used + excluded by reason.

    Args:
        store: that holds them.
        slides: of the cohort that have a bag.
        counts: the account, as runs record it.
        damaged: slides that were left out because of what is wrong with their bag.
        odd: slides that were left out because no model can read their bag beside the others.
    """

    store: BagStore
    slides: set[str]
    counts: dict[str, Any]
    damaged: Mapping[str, MarbleError] = field(default_factory=dict)
    odd: Mapping[str, MarbleError] = field(default_factory=dict)

    @property
    def left_out(self) -> dict[str, MarbleError]:
        """Slides that have a bag which cannot be used, with the reason."""
        return {**self.damaged, **self.odd}

    @staticmethod
    def of(cohort: Cohort, store: BagStore, damaged: Mapping[str, MarbleError] | None = None) -> Stock:
        """The stock as the records tell it, without the slides that are known to be `damaged`."""
        storage.pull(store.root)
        damaged = damaged or {}
        records = {
            slide: store.record(slide)
            for slide in cohort.slides()
            if slide not in damaged and store.has_record(slide)
        }  # fmt: skip
        odd = odd_ones_out(records.values(), store.root)
        slides = {slide for slide, record in records.items() if record.status == "ok" and slide not in odd}
        return Stock(store, slides, _account(cohort, records, damaged, odd), damaged, odd)

    @staticmethod
    def checked(cohort: Cohort, store: BagStore, runs: Path) -> Stock:
        """The stock after every bag of the cohort was read: one that cannot be used costs only itself.

        Runs that are finished below `runs` keep their slides: where one of those cannot be used by now, the others of
        the experiment could not be compared with them, so that it has to be mended first.
        """
        stock = Stock.of(cohort, store, damage(store, cohort.slides()))
        used = _used_by_finished(runs) if stock.left_out else {}
        for slide, error in stock.left_out.items():
            if slide in used:
                hint = "Extract or copy the slide again, or give another --out to do without it"
                what = f"{error.what}; {used[slide]} was made with it"
                raise IntegrityError(what, where=error.where, hint=hint) from error
        return stock


def _account(
    cohort: Cohort,
    records: Mapping[str, BagRecord],
    damaged: Mapping[str, MarbleError],
    odd: Mapping[str, MarbleError],
) -> dict[str, Any]:
    """Slides in = used + excluded by reason; patients without a slide are counted, but not as slides."""
    reasons: Counter[str] = Counter()
    for item in cohort.excluded:
        reasons[item.reason] += item.slides
    used = 0
    for slide in cohort.slides():
        record = records.get(slide)
        if slide in damaged:
            reasons[DAMAGED] += 1
        elif slide in odd:
            reasons[ODD] += 1
        elif record is None:
            reasons[NO_BAG] += 1
        elif record.status == "ok":
            used += 1
        else:
            reasons[f"{record.status}: {record.reason}"] += 1
    slides = {reason: count for reason, count in sorted(reasons.items()) if count}
    patients = sum(item.slides == 0 for item in cohort.excluded)
    unverified = sum(_is_unverified(record) for record in records.values())
    counts: dict[str, Any] = {"in": used + sum(slides.values()), "used": used, "excluded": slides}
    also = {"patients_without_slides": patients, "unverified": unverified}
    return counts | {key: count for key, count in also.items() if count}


def _is_unverified(record: BagRecord) -> bool:
    """Whether its bag was made here from a slide file that no manifest vouched for; imported features name no file."""
    origin = record.provenance
    if record.status != "ok" or origin is None or not origin.source.startswith("marble "):
        return False
    return origin.slide is None or not origin.slide.verified


def _used_by_finished(runs: Path) -> dict[str, Path]:
    """Slides of the finished runs of an experiment, each with one of the runs."""
    storage.pull(runs)
    used: dict[str, Path] = {}
    for path in sorted(runs.glob("*/*/run.json")):
        try:
            parts = read_run(path.parent)["parts"]
        except MarbleError:  # made again in any case
            continue
        used |= {slide: path.parent for part in parts.values() for slide in part}
    return used
