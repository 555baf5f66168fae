"""What the viewer may show, fixed when it starts: opaque keys on the outside, files on the inside.

A request names a key; a key that is not in here does not exist. No path that a client sends is ever joined to anything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marble.bags.bag import Bag
from marble.bags.provenance import SlideIdentity
from marble.bags.store import BagRecord, BagStore
from marble.errors import BagError, InputError
from marble.extract.source import find_slides, name_clashes, slide_id_of
from marble.training.job import TaskSpec
from marble.training.results import find_runs, read_cases, read_run
from marble.training.run import Run


def key_of(*parts: object) -> str:
    """A short name that says nothing about what it names."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class StoredPrediction:
    """What a run said of a slide's case when it was evaluated."""

    part: str
    readout: dict[str, float]
    predicted: str | None  # None for a task that calls no class
    text: str
    number: float
    wrong: bool


@dataclass(frozen=True)
class RunEntry:
    """A finished run."""

    key: str
    folder: Path
    record: dict[str, Any]
    experiment: str  # key
    stored: dict[str, StoredPrediction] = field(repr=False)  # by slide id

    @property
    def model(self) -> str:
        about = self.record["about"]
        return f"{about.get('model', self.record['model']['name'])} {about.get('variant', '')}".strip()

    @property
    def name(self) -> str:
        return f"{self.model}, repeat {self.record['about'].get('repeat', 0)}"


@dataclass(frozen=True)
class SlideEntry:
    """A slide of the stores or of the runs; its file if there is one."""

    key: str
    slide_id: str
    file: Path | None
    stores: tuple[BagStore, ...]
    record: BagRecord | None = None  # of the first store that has it
    case_id: str = ""
    truth: str = ""

    @property
    def tiles(self) -> tuple[int, ...]:
        """How many of each level, coarsest first."""
        return () if self.record is None else tuple(level.tokens for level in self.record.levels)

    @property
    def identity(self) -> SlideIdentity | None:
        """The slide the bag was made from."""
        return None if self.record is None or self.record.provenance is None else self.record.provenance.slide


@dataclass(frozen=True)
class Experiment:
    """Runs that one table compares."""

    key: str
    name: str
    folder: Path


@dataclass(frozen=True)
class Registry:
    """Everything there is, by key."""

    slides: dict[str, SlideEntry]
    runs: dict[str, RunEntry]
    experiments: dict[str, Experiment]

    def bag(self, slide: SlideEntry, run: RunEntry | None = None) -> Bag:
        """The slide's bag; for a run, the one that was made like its training bags."""
        if not slide.stores:
            raise BagError("no bag of this slide here")
        fitting = slide.stores
        if run is not None:
            wanted = Run(run.folder, run.record).provenance.recipe()
            fitting = tuple(store for store in slide.stores if store.common().recipe() == wanted) or slide.stores
        return fitting[0].load(slide.slide_id)


def build_registry(source: Path, slides: Path | None = None, store: Path | None = None) -> Registry:
    """Look once at everything below `source`, the slides folder and the store."""
    for given in (source, slides, store):
        if given is not None and not given.exists():
            raise InputError("no such folder", where=given)
    stores = [BagStore(path.parent) for root in (source, store) if root for path in sorted(root.rglob("store.json"))]
    folders = find_runs(source)
    if not stores and not folders:
        raise InputError(
            "neither a finished run nor a store of bags here", where=source, hint="Make some with `marble demo`"
        )
    experiments, runs = _runs(folders)
    files = _files(slides)
    truths = _truths(folders)
    first: dict[str, BagRecord] = {}
    homes: dict[str, list[BagStore]] = {}
    for one in stores:
        for record in one.records():
            if record.status == "ok":
                homes.setdefault(record.slide_id, []).append(one)
                first.setdefault(record.slide_id, record)
    entries = [
        SlideEntry(
            key_of("slide", slide_id), slide_id, files.get(slide_id), tuple(homes.get(slide_id, ())),
            first.get(slide_id), *truths.get(slide_id, ("", "")),
        )
        for slide_id in sorted({*homes, *truths})
    ]  # fmt: skip
    return Registry({entry.key: entry for entry in entries}, runs, experiments)


def _runs(folders: Iterable[Path]) -> tuple[dict[str, Experiment], dict[str, RunEntry]]:
    records = {folder: read_run(folder) for folder in folders}
    by_name: dict[str, list[Path]] = {}
    for folder, record in records.items():
        by_name.setdefault(str(record["about"].get("experiment", "runs")), []).append(folder)
    experiments = {}
    runs = {}
    for name, mine in by_name.items():
        root = Path(os.path.commonpath([folder.parent for folder in mine]))
        experiment = Experiment(key_of("experiment", name, root), name, root)
        experiments[experiment.key] = experiment
        for folder in mine:
            entry = RunEntry(
                key_of("run", folder),
                folder,
                records[folder],
                experiment.key,
                _stored_predictions(folder, records[folder]),
            )
            runs[entry.key] = entry
    return experiments, runs


def _stored_predictions(folder: Path, record: dict[str, Any]) -> dict[str, StoredPrediction]:
    task = TaskSpec.parse(record["task"], where=folder).build()
    found = {}
    for case in read_cases(folder, task):
        decision = task.decide(case.readout, record["calibration"])
        text, number = task.headline(case.readout, decision)
        wrong = task.is_wrong(case.target, decision)
        for slide_id in case.slide_ids:
            found[slide_id] = StoredPrediction(case.part, case.readout, decision.label, text, number, wrong)
    return found


def _truths(folders: Iterable[Path]) -> dict[str, tuple[str, str]]:
    """(case, truth) by slide id, as the runs' predictions tell it."""
    found: dict[str, tuple[str, str]] = {}
    for folder in folders:
        task = TaskSpec.parse(read_run(folder)["task"], where=folder).build()
        for case in read_cases(folder, task):
            for slide_id in case.slide_ids:
                found.setdefault(slide_id, (case.case_id, task.target_text(case.target)))
    return found


def _files(folder: Path | None) -> dict[str, Path]:
    """Slide files by id; two files of one id are refused, because one of them would be shown for the other."""
    if folder is None:
        return {}
    paths = find_slides([folder])
    for path, reason in name_clashes(paths).items():
        raise InputError(reason, where=path)
    return {slide_id_of(path): path for path in paths}
