"""`extract_many`: a batch of slides, each on its own. One status per slide, whatever happens to any of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from marble import files, storage
from marble.bags import BagStore
from marble.bags.record import BagRecord
from marble.compute import Done, Executor, Failed, Inline, Processes, describe, heard_by, locks, tell
from marble.errors import InputError, MarbleError
from marble.extract.choosing import Chooser
from marble.extract.extraction import Progress
from marble.extract.slide import OtherSlideError, extract_slide, known_record, source_in, store_for
from marble.extract.source import SlideFacts, drawn_for, ids_of, name_clashes, read_manifest, size_of, unusable_names
from marble.extract.spec import ExtractSpec, Machine, forget_encoders, load_encoders
from marble.pseudonyms import nameless
from marble.slides.mpp import mpp_of, read_mpp_csv


@dataclass(frozen=True)
class Job:
    """One slide, with what is known of it from outside."""

    path: Path
    slide_id: str
    facts: SlideFacts


@dataclass(frozen=True)
class BatchFacts:
    """What is known of the slides from outside their files.

    Args:
        mpp_csv: table `wsi,mpp` of pixel sizes that replace the files'.
        manifest: table `sha256,file`, or output of `sha256sum`; a slide that is not in it as it is, is refused.
        outlines: folder with `<slide id>.geojson` files that replace segmentation where they exist.
        hash_source: put every slide's SHA-256 into its record.
        ids: slide ids, as from `ids_of`; by default the files' stems.
        private: the ids are pseudonyms (`pseudonyms_for`): no file's name, folder or date is written or said.
    """

    mpp_csv: str | Path | None = None
    manifest: str | Path | None = None
    outlines: str | Path | None = None
    hash_source: bool = False
    ids: Mapping[Path, str] | None = None
    private: bool = False


@dataclass(frozen=True)
class SlideOutcome:
    """How one slide ended. `tiles` counts all levels of its bag."""

    path: Path
    slide_id: str
    status: Literal["ok", "failed", "excluded"]
    stage: str
    reason: str | None = None
    tiles: int = 0
    missing_tiles: int = 0
    verified: bool = False


@dataclass(frozen=True)
class BatchProgress:
    """How far the batch is; time left goes by the bytes of the slides not yet done, infinite before the first is."""

    last: SlideOutcome
    slides_done: int
    slides: int
    tiles: int
    seconds: float
    seconds_left: float

    @property
    def tiles_per_s(self) -> float:
        return self.tiles / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Summary:
    """All outcomes, in the order the slides were given."""

    store: Path
    outcomes: tuple[SlideOutcome, ...]
    seconds: float = field(compare=False, default=0.0)

    def count(self, status: str) -> int:
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def ok(self) -> bool:
        """Whether no slide failed; one without tissue has not."""
        return self.count("failed") == 0

    @property
    def unverified(self) -> int:
        """Bags whose slide was not checked against a manifest."""
        return sum(outcome.status == "ok" and not outcome.verified for outcome in self.outcomes)


def extract_many(
    paths: Iterable[str | Path],
    spec: ExtractSpec,
    store_root: str | Path,
    *,
    facts: BatchFacts | None = None,
    executor: Executor | None = None,
    machine: Machine | None = None,
    replace: bool = False,
    on_progress: Callable[[BatchProgress | Progress], None] | None = None,
    chooser: Chooser | None = None,
) -> Summary:
    """Extract every slide; a failing one, even one that kills its worker, costs only itself.

    Several batches may fill one store at the same time: a slide that another one is working on is left for last.

    Args:
        paths: slide files, as from `find_slides`.
        spec: every choice that changes the bags.
        store_root: bags go to `store_root/<fingerprint of spec>/`.
        facts: what is known of the slides from outside: ids, pixel sizes, hashes, outlines.
        executor: where the slides run; in this process by default.
        machine: what each of them runs on.
        replace: bags of other slides with the same id.
        on_progress: called after every slide with a `BatchProgress`; after every batch of tiles, where the executor
            hears of them, with a `Progress`.
        chooser: says between levels which branches to go on with; tiles of the others are never read.
    """
    began = time.monotonic()
    executor, machine, facts = executor or Inline(), machine or Machine(), facts or BatchFacts()
    machine = machine.shared_by(executor)
    chosen = [Path(path) for path in paths]
    if not chosen:
        raise InputError("no slides to extract", hint="Give slide files, or folders that hold some")
    sizes = read_mpp_csv(facts.mpp_csv) if facts.mpp_csv is not None else {}
    hashes = read_manifest(facts.manifest) if facts.manifest is not None else None
    store = store_for(store_root, spec, chooser)
    storage.pull(store.root)
    files.make_folder(store.root)
    files.sweep(store.root)
    locks.sweep(store.root)
    load_encoders(spec, machine)  # what is missing is said once and now, not once per slide
    if not isinstance(executor, Inline):
        forget_encoders()
    named = dict(facts.ids) if facts.ids is not None else ids_of(chosen, ())
    refused = unusable_names(named) | name_clashes(chosen, named) | _not_listed(chosen, hashes)
    outcomes = {path: _refused(path, named[path], reason, facts.private) for path, reason in refused.items()}
    jobs = [_job(path, named[path], facts, sizes, hashes) for path in chosen if path not in refused]
    run = partial(_run, spec=spec, store_root=store_root, machine=machine, replace=replace, chooser=chooser, wait=False)
    clock = _Clock([job.path for job in jobs], began)
    for outcome in outcomes.values():
        clock.tell(outcome, len(chosen), on_progress)
    busy: list[Job] = []
    heard = _Tiles(on_progress)
    if isinstance(executor, Processes):
        executor = dataclasses.replace(executor, on_news=lambda _job, news: heard(news))
    with heard_by(heard):
        for work, todo in ((run, jobs), (partial(run, wait=True), busy)):
            for ended in executor.map(work, todo):
                if isinstance(ended, Done) and ended.result is None:
                    busy.append(ended.item)
                    continue
                outcome = _outcome(ended, store)
                outcomes[outcome.path] = outcome
                clock.tell(outcome, len(chosen), on_progress)
    return Summary(store.root, tuple(outcomes[path] for path in chosen), time.monotonic() - began)


def _run(
    job: Job,
    *,
    spec: ExtractSpec,
    store_root: str | Path,
    machine: Machine,
    replace: bool,
    chooser: Chooser | None,
    wait: bool,
) -> BagRecord | None:
    """The slide's record; None if another process is working on it and we do not wait."""
    try:
        return extract_slide(
            job.path,
            spec,
            store_root,
            facts=job.facts,
            machine=machine,
            on_progress=tell,
            replace=replace,
            wait=wait,
            chooser=chooser,
        )
    except locks.BusyError:
        return None
    except OtherSlideError as error:  # the store is left as it is
        reason = describe(error)
        reason = nameless(reason, job.path, job.slide_id) if job.facts.private else reason
        return BagRecord(slide_id=job.slide_id, status="failed", stage="verify", reason=reason)


def _job(
    path: Path, slide_id: str, facts: BatchFacts, sizes: Mapping[str, float], hashes: Mapping[str, str] | None
) -> Job:
    about = SlideFacts(
        slide_id,
        mpp_of(path, sizes),
        drawn_for(facts.outlines, path, slide_id, private=facts.private),
        None if hashes is None else hashes[path.name],
        facts.hash_source,
        facts.private,
    )
    return Job(path, slide_id, about)


def _not_listed(paths: list[Path], hashes: Mapping[str, str] | None) -> dict[Path, str]:
    if hashes is None:
        return {}
    return {path: f"{path.name} is not in the manifest" for path in paths if path.name not in hashes}


def _refused(path: Path, slide_id: str, reason: str, private: bool) -> SlideOutcome:
    """A slide that was not even opened. The store is left alone: under its id there may be another slide's bag."""
    reason = nameless(reason, path, slide_id) if private else reason
    return SlideOutcome(path, slide_id, "failed", "verify", reason)


def _outcome(ended: Done[Job, BagRecord | None] | Failed[Job], store: BagStore) -> SlideOutcome:
    path, slide_id = ended.item.path, ended.item.slide_id
    if isinstance(ended, Failed):
        reason = nameless(ended.reason, path, slide_id) if ended.item.facts.private else ended.reason
        known = known_record(store, slide_id)
        if known is None or known.status != "ok":  # a worker may also die after its slide was done
            with suppress(MarbleError):  # a full disk: what is said here is all there is
                store.note(slide_id, "failed", "worker", reason)
        return SlideOutcome(path, slide_id, "failed", "worker", reason)
    record = ended.result
    assert record is not None
    return SlideOutcome(
        path,
        slide_id,
        record.status,
        record.stage,
        record.reason,
        sum(level.tokens for level in record.levels),
        _missing_tiles(record),
        bool(source_in(record).get("verified")),
    )


def _missing_tiles(record: BagRecord) -> int:
    counts = record.details.get("missing_tiles", ())
    return sum(count for count in counts if isinstance(count, int)) if isinstance(counts, list | tuple) else 0


@dataclass(frozen=True)
class _Tiles:
    """Passes on how far slides are; what else a slide tells only shows that it is alive."""

    listener: Callable[[Progress], None] | None

    def __call__(self, news: object) -> None:
        if self.listener is not None and isinstance(news, Progress):
            self.listener(news)


class _Clock:
    """Tiles per second so far, and the time left by the bytes of the slides still to come."""

    def __init__(self, paths: list[Path], began: float) -> None:
        self.bytes = {path: size_of(path) for path in paths}
        self.began, self.done, self.tiles, self.bytes_done = began, 0, 0, 0

    def tell(self, outcome: SlideOutcome, slides: int, listener: Callable[[BatchProgress], None] | None) -> None:
        self.done += 1
        self.tiles += outcome.tiles
        self.bytes_done += self.bytes.get(outcome.path, 0)
        seconds = time.monotonic() - self.began
        left = sum(self.bytes.values()) - self.bytes_done
        seconds_left = seconds * left / self.bytes_done if self.bytes_done else float("inf")
        if listener is not None:
            listener(BatchProgress(outcome, self.done, slides, self.tiles, seconds, seconds_left if left else 0.0))
