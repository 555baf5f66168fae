"""What the viewer may show, fixed when it starts: opaque keys on the outside, files on the inside.

A request names a key; a key that is not in here does not exist. No path that a client sends is ever joined to anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from marble.bags.bag import Bag
from marble.bags.provenance import SlideIdentity
from marble.bags.record import BagRecord
from marble.bags.store import BagStore
from marble.bags.survey import survey
from marble.errors import BagError, InputError, MarbleError
from marble.extract.source import find_slides, name_clashes
from marble.identifiers import slide_id_of
from marble.pseudonyms import Pseudonyms
from marble.reports.cases import key_of
from marble.targets import Target
from marble.tasks.base import Task
from marble.training.job import TaskSpec
from marble.training.membership import Members
from marble.training.results import find_runs, read_run
from marble.training.run_folder import RunFolder
from marble.viewer.stored import StoredPrediction, stored_predictions
from marble.walking import named

__all__ = [
    "ExperimentEntry",
    "Registry",
    "RunEntry",
    "SlideEntry",
    "StoredBag",
    "StoredPrediction",
    "Truth",
    "build_registry",
    "key_of",
]


LABEL = "label"  # what a truth that is a class is called, and one of which nobody knows the kind


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
        return self.model_of(self.record)

    @staticmethod
    def model_of(record: dict[str, Any]) -> str:
        """The model as tables call it, with its variant if several compete."""
        about = record["about"]
        return f"{about.get('model', record['model']['name'])} {about.get('variant', '')}".strip()

    @property
    def task(self) -> Task:
        return RunFolder(self.folder, self.record).task

    @property
    def unit(self) -> str:
        """Of the number it predicts, or of survival times; empty if nobody said."""
        return str(self.record["about"].get("unit", ""))

    @property
    def repeat(self) -> int:
        return int(self.record["about"].get("repeat", 0))

    @property
    def name(self) -> str:
        return f"{self.model}, repeat {self.repeat}"

    def part_of(self, slide: SlideEntry) -> str:
        """Which part of this run a slide was in: test, val, train, or new if it was in none."""
        return self._members.part_of_id(slide.slide_id)

    @cached_property
    def _members(self) -> Members:
        return RunFolder(self.folder, self.record).members


@dataclass(frozen=True)
class StoredBag:
    """One of a slide's bags: a store holds one, and two stores may have laid their tiles differently."""

    key: str
    store: BagStore
    record: BagRecord = field(repr=False)

    @property
    def slide_id(self) -> str:
        return self.record.slide_id

    @property
    def tiles(self) -> tuple[int, ...]:
        """How many of each level, coarsest first."""
        return tuple(level.tokens for level in self.record.levels)

    @property
    def identity(self) -> SlideIdentity | None:
        """The slide the bag was made from."""
        return None if self.record.provenance is None else self.record.provenance.slide

    def load(self) -> Bag:
        return self.store.load(self.slide_id)


@dataclass(frozen=True)
class Truth:
    """What is known of a slide, as one experiment or several of them ask for it."""

    name: str  # what such a truth is called
    text: str
    target: Target

    @property
    def is_class(self) -> bool:
        return self.name == LABEL


@dataclass(frozen=True)
class SlideEntry:
    """A slide of the stores or of the runs; its file if there is one."""

    key: str
    slide_id: str
    file: Path | None
    bags: tuple[StoredBag, ...]
    case_id: str = ""
    truths: tuple[Truth, ...] = ()  # several where experiments ask for different things

    @property
    def truth(self) -> str:
        """All that is known of it, in words."""
        return "; ".join(truth.text for truth in self.truths)

    @property
    def labels(self) -> list[str]:
        """Those of its truths that are classes."""
        return [truth.text for truth in self.truths if truth.is_class]

    @property
    def tiles(self) -> tuple[int, ...]:
        """How many of each level, coarsest first, in the first store that has the slide."""
        return self.bags[0].tiles if self.bags else ()


#: of one run: its record, and its predictions by slide
_Stored = tuple[dict[str, Any], dict[str, StoredPrediction]]


@dataclass(frozen=True)
class ExperimentEntry:
    """Runs that one table compares."""

    key: str
    name: str
    folder: Path


@dataclass(frozen=True)
class Registry:
    """Everything there is, by key; `left_out` says in a line each what is damaged and therefore not shown."""

    slides: dict[str, SlideEntry]
    runs: dict[str, RunEntry]
    experiments: dict[str, ExperimentEntry]
    left_out: tuple[str, ...] = ()

    def bag(self, slide: SlideEntry, run: RunEntry | None = None) -> StoredBag:
        """The slide's bag; for a run, the one that was made like its training bags.

        Where there is none such, the first is taken, and the prediction says that it was made otherwise.
        """
        if not slide.bags:
            raise BagError("no bag of this slide here")
        fitting = slide.bags
        if run is not None:
            wanted = RunFolder(run.folder, run.record).provenance.recipe()
            fitting = tuple(one for one in slide.bags if one.store.common().recipe() == wanted) or slide.bags
        return fitting[0]


@dataclass(frozen=True)
class Places:
    """Where to look.

    Args:
        source: folder of runs, a store, or one with both.
        slides: folder with the slide files.
        store: with the runs' bags, if it is elsewhere.
        pseudonyms: table of the ids that slide files go by; they are where it says if no folder is given.
    """

    source: Path
    slides: Path | None = None
    store: Path | None = None
    pseudonyms: Path | None = None

    def registry(self) -> Registry:
        return build_registry(self.source, self.slides, self.store, self.pseudonyms)


def build_registry(
    source: Path, slides: Path | None = None, store: Path | None = None, pseudonyms: Path | None = None
) -> Registry:
    """Look once at everything below `source`, the slides folder and the store.

    With a table of `pseudonyms`, slide files go by the ids that it gives them, and are where it says if no folder is
    given.
    """
    for given in (source, slides, store):
        if given is not None and not given.exists():
            raise InputError("no such folder", where=given)
    held = [path.parent for root in (source, store) if root for path in named(root, "store.json")]
    stores = [BagStore(one) for one in {one.resolve(): one for one in held}.values()]  # one may lie within the other
    folders = find_runs(source)
    if not stores and not folders:
        raise InputError(
            "neither a finished run nor a store of bags here", where=source, hint="Make some with `marble demo`"
        )
    left_out: list[MarbleError] = []
    trusted = _trusted(folders, left_out)
    experiments, runs = _runs(trusted)
    files = _files(slides, pseudonyms)
    truths, cases = _truths(trusted), _cases(trusted)
    bags: dict[str, list[StoredBag]] = {}
    for one in stores:
        key = key_of("bag", one.root)
        for slide_id, error in survey(one):
            if error is None:
                bags.setdefault(slide_id, []).append(StoredBag(key, one, one.record(slide_id)))
            else:
                left_out.append(error)
    if left_out and not runs and not bags:  # nothing of what was asked for can be shown
        raise left_out[0]
    entries = [
        SlideEntry(
            key_of("slide", slide_id), slide_id, files.get(slide_id), tuple(bags.get(slide_id, ())),
            cases.get(slide_id, ""), tuple(truths.get(slide_id, ())),
        )
        for slide_id in sorted({*bags, *truths})
    ]  # fmt: skip
    return Registry({entry.key: entry for entry in entries}, runs, experiments, tuple(map(str, left_out)))


def _trusted(folders: Iterable[Path], left_out: list[MarbleError]) -> dict[Path, _Stored]:
    """The record and the predictions of every run that is whole; what is wrong with the others."""
    found = {}
    for folder in folders:
        try:
            record = read_run(folder)
            found[folder] = record, stored_predictions(folder, record)
        except MarbleError as error:
            left_out.append(error)
    return found


def _runs(stored: Mapping[Path, _Stored]) -> tuple[dict[str, ExperimentEntry], dict[str, RunEntry]]:
    by_name: dict[str, list[Path]] = {}
    for folder, (record, _) in stored.items():
        by_name.setdefault(str(record["about"].get("experiment", "runs")), []).append(folder)
    experiments = {}
    runs = {}
    apart = [one for name, mine in by_name.items() for one in _apart(name, mine, stored)]
    for name, mine in apart:
        root = Path(os.path.commonpath([folder.parent for folder in mine]))
        experiment = ExperimentEntry(key_of("experiment", name, root), name, root)
        experiments[experiment.key] = experiment
        for folder in mine:
            entry = RunEntry(
                key_of("run", folder),
                folder,
                stored[folder][0],
                experiment.key,
                stored[folder][1],
            )
            runs[entry.key] = entry
    return experiments, runs


def _apart(name: str, folders: list[Path], stored: Mapping[Path, _Stored]) -> list[tuple[str, list[Path]]]:
    """The runs of one name, by experiment: where a run is there twice, as in a copy, each folder is one of its own."""
    seen = {(RunEntry.model_of(stored[folder][0]), stored[folder][0]["about"].get("repeat", 0)) for folder in folders}
    if len(seen) == len(folders):
        return [(name, folders)]
    homes: dict[Path, list[Path]] = {}
    for folder in folders:
        homes.setdefault(folder.parent.parent, []).append(folder)
    common = os.path.commonpath(list(homes))
    told = {home: os.path.relpath(home, common) for home in homes}
    return [(name if told[home] in (".", name) else f"{name} ({told[home]})", mine) for home, mine in homes.items()]


def _truths(stored: Mapping[Path, _Stored]) -> dict[str, list[Truth]]:
    """What the runs' predictions tell by slide id, everything once: experiments may ask for different things."""
    found: dict[str, list[Truth]] = {}
    for folder, (record, said) in stored.items():
        task, unit = TaskSpec.parse(record["task"], where=folder).build(), str(record["about"].get("unit", ""))
        for slide_id, one in said.items():
            told = Truth(task.truth_name, task.target_text(one.target, unit), one.target)
            known = found.setdefault(slide_id, [])
            if told not in known:
                known.append(told)
    return found


def _cases(stored: Mapping[Path, _Stored]) -> dict[str, str]:
    """The case of every slide of the runs; of one that was only trained on, a run may have stored no prediction."""
    parts = [members for record, _ in stored.values() for members in record["parts"].values()]
    return {slide_id: str(entry["case_id"]) for members in parts for slide_id, entry in members.items()}


def _files(folder: Path | None, pseudonyms: Path | None) -> dict[str, Path]:
    """Slide files by id; two files of one id are refused, because one of them would be shown for the other."""
    if pseudonyms is not None:
        known = Pseudonyms.read(pseudonyms)
        if folder is None:
            return known.files()
        return {slide_id: path for path, slide_id in known.ids_of(find_slides([folder])).items()}
    if folder is None:
        return {}
    paths = find_slides([folder])
    for path, reason in name_clashes(paths).items():
        raise InputError(reason, where=path)
    return {slide_id_of(path): path for path in paths}
