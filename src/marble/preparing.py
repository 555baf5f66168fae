"""Slide files, folders, bags and stores as bags for a run: a slide is prepared exactly as the training bags were."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from marble.bags.bag import Bag
from marble.bags.record import BagRecord, read_record
from marble.bags.store import BagStore
from marble.bags.survey import survey
from marble.compute import Done, Executor, Failed, Inline, Processes, tell
from marble.errors import InputError, SlideError
from marble.identifiers import slide_id_of
from marble.prediction import RunChooser
from marble.pseudonyms import nameless_error, pseudonyms_for
from marble.slides.endings import refuse_other_kinds
from marble.training.routing import Routing
from marble.training.run_folder import RunFolder

if TYPE_CHECKING:
    from marble.extract import ExtractSpec, Machine

#: what a source holds: a slide file, or an id with the store of its bag, or a name with what is wrong
Found: TypeAlias = "Path | tuple[str, BagStore | Exception]"


@dataclass(frozen=True)
class SlideOptions:
    """How a slide file is prepared where the run's record does not say, or cannot know.

    Args:
        device: of the encoder.
        weights: encoder name -> local weights file.
        mpp: um per level-0 pixel, in place of what the files say.
        outlines: GeoJSON with a slide's tissue outlines, or a folder of SLIDE.geojson.
        spec: extraction settings (TOML) for a run whose bags do not know theirs, as imported features.
        pseudonyms: table of the random ids that slide files go by; one that is new to it gets a row.
        ids: those ids, once they are known.
    """

    device: str = "cpu"
    weights: Mapping[str, Path] = field(default_factory=dict)
    mpp: float | None = None
    outlines: Path | None = None
    spec: Path | None = None
    pseudonyms: Path | None = None
    ids: Mapping[Path, str] = field(default_factory=dict)

    def name_of(self, path: Path) -> str:
        """What a slide file is called in answers."""
        return self.ids.get(path, path.stem)


def bags_of(
    sources: Iterable[str | Path],
    run: RunFolder,
    options: SlideOptions | None = None,
    routing: Routing | None = None,
    *,
    executor: Executor | None = None,
) -> Iterator[tuple[str, Bag | Exception]]:
    """Every bag of the sources: a store, a bag file in one, a slide file or a folder of slides.

    Slides are tiled and embedded as in training, by `executor` (in this process by default); of a slide, with
    `routing`, only the fine tiles that it chooses are read and embedded. A source that cannot be used is yielded with
    its error, and the rest goes on.
    """
    found, options = found_in(sources, run, options or SlideOptions())
    slides = [one for one in found if isinstance(one, Path)]
    with TemporaryDirectory(prefix="marble-predict-") as scratch:
        prepared = _prepared(slides, run, options, routing, executor or Inline(), Path(scratch))
        for one in found:
            if isinstance(one, Path):
                yield next(prepared)
            elif isinstance(one[1], BagStore):
                yield one[0], _load(one[1], one[0])
            else:
                yield one[0], one[1]


def found_in(sources: Iterable[str | Path], run: RunFolder, options: SlideOptions) -> tuple[list[Found], SlideOptions]:
    """What the sources hold, and the options with the pseudonyms of what goes by one: files, and what is none."""
    given = [Path(source) for source in sources]
    found = _each_once(one for source in given for one in _found_at(source, run))
    slides = sum(isinstance(one, Path) for one in found)
    if slides > 1 and options.outlines is not None and options.outlines.is_file():
        hint = "Give a folder with a SLIDE.geojson for each of them"
        raise InputError(f"the tissue outlines of one slide, for {slides} slides", where=options.outlines, hint=hint)
    if options.pseudonyms is None:
        return found, options
    typed = {str(source) for source in given}  # where nothing can be used, the source itself is named
    named = [
        one if isinstance(one, Path) else Path(one[0]) for one in found if isinstance(one, Path) or one[0] in typed
    ]
    ids = pseudonyms_for(options.pseudonyms, named)
    return [_nameless(one, ids) for one in found], replace(options, pseudonyms=None, ids=ids)


def _each_once(found: Iterable[Found]) -> list[Found]:
    """A slide that lies in a folder and is named beside it is asked about once, as it is extracted once."""
    known: dict[object, Found] = {}
    for one in found:
        if isinstance(one, Path):
            known.setdefault((os.path.realpath(one), one.name), one)
        elif isinstance(one[1], BagStore):
            known.setdefault((one[0], os.path.realpath(one[1].root)), one)
        else:
            known.setdefault((one[0], str(one[1])), one)
    return list(known.values())


def holds_bags(path: Path) -> bool:
    """Whether a source is a bag or a store, of which no slide has to be prepared."""
    return BagStore.any_at(path) if path.is_dir() else path.suffix == ".safetensors"


def _nameless(one: Found, ids: Mapping[Path, str]) -> Found:
    if isinstance(one, Path) or not isinstance(one[1], Exception) or (path := Path(one[0])) not in ids:
        return one
    return ids[path], nameless_error(one[1], path, ids[path])


def _found_at(path: Path, run: RunFolder) -> Iterator[Found]:
    """What a source holds: slide files, and bags by their id and store."""
    from marble.extract import slides_in

    try:
        if holds_bags(path) and not path.is_dir():
            store, known = BagStore(path.parent), path.with_suffix(".json")
            if not known.exists() or store.bag_path(slide_id := read_record(known).slide_id).name != path.name:
                raise InputError("no record beside this bag says that it is whole", where=path, hint="Extract it again")
            yield slide_id, store
        elif holds_bags(path):
            store = BagStore.find(path, like=run.provenance)
            yield from ((slide_id, error or store) for slide_id, error in survey(store))
        elif path.is_dir():
            try:
                yield from slides_in([path])
            except InputError as error:
                raise InputError(f"no bags and {error.what}", where=path, hint=error.hint) from None
        elif path.exists():
            refuse_other_kinds(path)
            yield path
        else:
            raise InputError("no such slide, bag or store", where=path)
    except Exception as error:  # one bad source must not end the batch
        yield str(path), error


def _load(store: BagStore, slide_id: str) -> Bag | Exception:
    try:
        return store.load(slide_id)
    except Exception as error:  # reported for this slide alone
        return error


@dataclass(frozen=True)
class _SlideJob:
    """One slide that is to be prepared, and the folder for its bag."""

    number: int
    path: Path
    folder: Path


def _prepared(
    slides: Sequence[Path],
    run: RunFolder,
    options: SlideOptions,
    routing: Routing | None,
    executor: Executor,
    scratch: Path,
) -> Iterator[tuple[str, Bag | Exception]]:
    """Tile and embed slides exactly as the run's training bags were; of their branches, those that routing chooses."""
    from marble.extract import Machine, load_encoders, store_for

    try:
        spec = _settings(run, options) if slides else None
    except InputError as error:
        for path in slides:
            where = options.ids.get(path, path)
            yield options.name_of(path), InputError(error.what, where=where, hint=error.hint)
        return
    if spec is None:
        return
    machine = Machine(device=options.device, weights=dict(options.weights)).shared_by(executor)
    chooser = None if routing is None else RunChooser(run.folder.resolve(), routing.budget)
    if isinstance(executor, Processes):
        executor = replace(executor, prepare=partial(load_encoders, spec, machine))
    work = partial(_prepare, spec=spec, options=options, machine=machine, chooser=chooser)
    jobs = [_SlideJob(number, path, scratch / str(number)) for number, path in enumerate(slides)]
    ended = executor.map(work, jobs)
    early: dict[int, Done[_SlideJob, BagRecord] | Failed[_SlideJob]] = {}  # those that ended before their turn
    for job in jobs:
        while job.number not in early:
            one = next(ended)
            early[one.item.number] = one
        outcome = early.pop(job.number)
        made = _made(outcome, store_for(job.folder, spec, chooser))
        if job.path in options.ids and isinstance(made, Exception):
            made = nameless_error(made, job.path, options.ids[job.path])
        yield options.name_of(job.path), made
        shutil.rmtree(job.folder, ignore_errors=True)  # the bag stays mapped


def _settings(run: RunFolder, options: SlideOptions) -> ExtractSpec:
    from marble.extract import ExtractSpec

    settings = run.record["bags"].get("notes", {}).get("extract")
    if options.spec is not None:
        return ExtractSpec.from_toml(options.spec)
    if settings is not None:
        return ExtractSpec.parse(settings, where=run.folder / "run.json")
    raise InputError(
        "this run was trained on bags without extraction settings, so a slide cannot be prepared for it",
        hint="Give the settings with --spec FILE.toml, or a bag made in the same way as the training bags",
    )


def _prepare(
    job: _SlideJob, *, spec: ExtractSpec, options: SlideOptions, machine: Machine, chooser: RunChooser | None
) -> BagRecord:
    from marble.extract import SlideFacts, extract_slide

    outlines = options.outlines
    if outlines is not None and outlines.is_dir():
        outlines = outlines / f"{slide_id_of(job.path)}.geojson"
    # Hashed, so that a slide of the training part is known again under any name.
    slide_id = options.ids.get(job.path)
    facts = SlideFacts(slide_id, options.mpp, outlines, None, job.path.is_file(), slide_id is not None)
    return extract_slide(job.path, spec, job.folder, facts=facts, machine=machine, chooser=chooser, on_progress=tell)


def _made(ended: Done[_SlideJob, BagRecord] | Failed[_SlideJob], store: BagStore) -> Bag | Exception:
    if isinstance(ended, Failed):
        return SlideError(ended.reason, where=None if str(ended.item.path) in ended.reason else ended.item.path)
    record = ended.result
    if record.status != "ok":
        return SlideError(f"{record.status} at {record.stage}: {record.reason}", where=ended.item.path)
    return _load(store, record.slide_id)
