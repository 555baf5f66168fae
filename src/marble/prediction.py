"""A trained run and a slide, a bag or a store in; one row per slide out.

`predict(model, bag)` is the public name of the one inference path (`models.inference.infer`); `predict_sources` is what
`marble predict`, the heatmaps and the viewer share, so the number they show is the same number.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from marble import files
from marble.bags.bag import Bag
from marble.bags.record import BagRecord, read_record
from marble.bags.store import BagStore
from marble.bags.survey import survey
from marble.compute import Done, Executor, Failed, Inline, Processes, tell
from marble.errors import BagError, InputError, SlideError
from marble.identifiers import slide_id_of
from marble.models.base import BagModel
from marble.models.inference import Prediction, infer
from marble.models.inference import infer as predict
from marble.models.routing import check_budget
from marble.slides.endings import refuse_other_kinds
from marble.tasks.base import Decision
from marble.training.membership import Membership
from marble.training.routing import Routing, read_routing
from marble.training.run_folder import RunFolder

if TYPE_CHECKING:
    from marble.extract import ExtractSpec, Machine

__all__ = ["Answer", "Predictor", "RunChooser", "SlideOptions", "bags_of", "chooser_of", "found_at", "predict"]


@dataclass(frozen=True, eq=False)
class Answer:
    """What a run says about one slide."""

    prediction: Prediction
    readout: dict[str, float]
    decision: Decision
    sentence: str  # the prediction in words
    membership: Membership  # the part of the run that the slide was in
    warnings: tuple[str, ...] = ()
    curve: dict[float, float] = field(default_factory=dict)  # time -> survival probability
    fine_tiles: int | None = None  # how many were looked at, where routing chose them

    @property
    def label(self) -> str | None:
        """The class called; None for a task that calls none."""
        return self.decision.label

    def row(self) -> dict[str, Any]:
        """One flat row for a table."""
        body: dict[str, Any] = {"slide_id": self.prediction.slide_id, "part": self.membership.part}
        if self.label is not None:
            body["predicted"] = self.label
        curve = {f"survival_at_{time:g}": value for time, value in self.curve.items()}
        said = "; ".join(self.warnings)
        routed = {} if self.fine_tiles is None else {"fine_tiles": self.fine_tiles}
        return body | self.readout | curve | routed | {"order_sd": self.prediction.order_sd, "warnings": said}


class Predictor:
    """A run opened once and asked many times.

    Args:
        run: the run, or its folder.
        device: where it computes: auto, cpu, cuda, cuda:N or mps.
        routed: look only at the fine tiles that the run's router chooses (`marble route`).
        budget: share of the fine tiles that it may choose; by default the one sealed into the run.
    """

    def __init__(
        self, run: str | Path | RunFolder, *, device: str = "cpu", routed: bool = False, budget: float | None = None
    ) -> None:
        self.run = run if isinstance(run, RunFolder) else RunFolder.open(run)
        self.task = self.run.task
        self.model: BagModel = self.run.model(device)
        self.orders = int(self.run.record["orders"])
        self.members = self.run.members
        self.routing: Routing | None = None
        if budget is not None:
            check_budget(budget)
        if routed or (budget is not None and budget < 1):  # the whole of a slide needs no router
            self.routing = Routing.open(self.run, self.model, budget)

    def answer(self, bag: Bag) -> Answer:
        """Predict; the same bag gives bitwise the same answer, whatever order it is stored in."""
        self._refuse_other_encoder(bag)
        with _threads(int(self.run.record["threads"])):  # sums depend on their number
            seen = bag if self.routing is None else self.routing.prune(bag)
            prediction = infer(self.model, seen, self.orders)
        calibration = self.run.calibration
        readout = self.task.readout(prediction.logits, calibration)
        decision = self.task.decide(readout, calibration)
        membership = self.members.of(bag)
        return Answer(
            prediction,
            readout,
            decision,
            self.task.sentence(readout, decision),
            membership,
            tuple(self._warnings(bag, membership)),
            self.task.curve(readout, calibration),
            None if self.routing is None else len(seen.finest),
        )

    def _refuse_other_encoder(self, bag: Bag) -> None:
        """Tokens of another network mean nothing to the model, even where they are as wide.

        Tools name encoders each in their own way, so only bags of one tool can be compared; others get a warning.
        """
        ours, theirs = self.run.provenance, bag.provenance
        if ours.recipe()["source"] == theirs.recipe()["source"] and ours.encoders != theirs.encoders:
            known, found = (
                ", ".join(f"{one.name} {(one.weights_sha256 or '')[:12]}".strip() for one in made.encoders)
                or "no encoder"
                for made in (ours, theirs)
            )
            raise BagError(
                f"tokens of {found}, but the run was trained on those of {known}",
                where=bag.slide_id,
                hint="Extract the slide with the encoder of the run, or train a run on bags of this one",
            )

    def _warnings(self, bag: Bag, membership: Membership) -> Iterator[str]:
        try:
            bag.provenance.require_same_recipe(self.run.provenance, where=bag.slide_id, against="the training bags")
        except BagError as error:
            yield f"not made like the training bags: {error.what}"
        if membership.warning is not None:
            yield membership.warning


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class SlideOptions:
    """How a slide file is prepared where the run's record does not say, or cannot know.

    Args:
        device: of the encoder.
        weights: encoder name -> local weights file.
        mpp: um per level-0 pixel, in place of what the files say.
        outlines: GeoJSON with a slide's tissue outlines, or a folder of SLIDE.geojson.
        spec: extraction settings (TOML) for a run whose bags do not know theirs, as imported features.
    """

    device: str = "cpu"
    weights: Mapping[str, Path] = field(default_factory=dict)
    mpp: float | None = None
    outlines: Path | None = None
    spec: Path | None = None


@dataclass(frozen=True)
class RunChooser:
    """A run's router as extraction takes it: opened in the process that works on the slide."""

    folder: Path
    budget: float

    def identity(self) -> dict[str, Any]:
        return {"routing": read_routing(self.folder)[files.SEAL], "budget": self.budget}

    def keep(self, seen: Bag, below: NDArray[np.int64], total: int, depth: int) -> NDArray[np.bool_]:
        predictor = _opened(self.folder, self.budget)
        assert predictor.routing is not None
        if depth != predictor.routing.router.levels:
            raise InputError(f"slides of {depth} levels, but the router was made for {predictor.routing.router.levels}")
        with _threads(int(predictor.run.record["threads"])):
            kept: NDArray[np.bool_] = predictor.routing.keep(seen, torch.from_numpy(below), total, depth).numpy()
        return kept


def chooser_of(run: str | Path, budget: float | None = None) -> RunChooser:
    """The router of a run, for `marble.extract`; with the budget sealed into the run unless another is given."""
    folder = Path(run)
    predictor = Predictor(folder, routed=True, budget=budget)
    assert predictor.routing is not None
    return RunChooser(folder.resolve(), predictor.routing.budget)


@lru_cache(maxsize=2)
def _opened(folder: Path, budget: float) -> Predictor:
    return Predictor(folder, routed=True, budget=budget)


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
    found = [one for source in sources for one in found_at(Path(source), run)]
    slides = [one for one in found if isinstance(one, Path)]
    with TemporaryDirectory(prefix="marble-predict-") as scratch:
        prepared = _prepared(slides, run, options or SlideOptions(), routing, executor or Inline(), Path(scratch))
        for one in found:
            if isinstance(one, Path):
                yield next(prepared)
            elif isinstance(one[1], BagStore):
                yield one[0], _load(one[1], one[0])
            else:
                yield one[0], one[1]


def found_at(path: Path, run: RunFolder) -> Iterator[Path | tuple[str, BagStore | Exception]]:
    """What a source holds: slide files, and bags by their id and store."""
    from marble.extract import slides_in

    try:
        if path.suffix == ".safetensors" and not path.is_dir():
            store, known = BagStore(path.parent), path.with_suffix(".json")
            if not known.exists() or store.bag_path(slide_id := read_record(known).slide_id).name != path.name:
                raise InputError("no record beside this bag says that it is whole", where=path, hint="Extract it again")
            yield slide_id, store
        elif path.is_dir() and BagStore.any_at(path):
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
        yield from ((path.stem, InputError(error.what, where=path, hint=error.hint)) for path in slides)
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
        yield job.path.stem, _made(outcome, store_for(job.folder, spec, chooser))
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
    facts = SlideFacts(mpp=options.mpp, outlines=outlines, hash_source=job.path.is_file())
    return extract_slide(job.path, spec, job.folder, facts=facts, machine=machine, chooser=chooser, on_progress=tell)


def _made(ended: Done[_SlideJob, BagRecord] | Failed[_SlideJob], store: BagStore) -> Bag | Exception:
    if isinstance(ended, Failed):
        return SlideError(ended.reason, where=None if str(ended.item.path) in ended.reason else ended.item.path)
    record = ended.result
    if record.status != "ok":
        return SlideError(f"{record.status} at {record.stage}: {record.reason}", where=ended.item.path)
    return _load(store, record.slide_id)
