"""A trained run and a slide, a bag or a store in; one row per slide out.

`predict(model, bag)` is the public name of the one inference path (`models.inference.infer`); `predict_sources` is what
`marble predict`, the heatmaps and the viewer share, so the number they show is the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.errors import BagError, InputError, SlideError
from marble.models.base import BagModel
from marble.models.inference import Prediction, infer
from marble.models.inference import infer as predict
from marble.tasks.base import Decision
from marble.training.run import Run

__all__ = ["Answer", "Predictor", "bags_of", "predict"]


@dataclass(frozen=True, eq=False)
class Answer:
    """What a run says about one slide."""

    prediction: Prediction
    readout: dict[str, float]
    decision: Decision
    sentence: str  # the prediction in words
    warnings: tuple[str, ...] = ()
    curve: dict[float, float] = field(default_factory=dict)  # time -> survival probability

    @property
    def label(self) -> str | None:
        """The class called; None for a task that calls none."""
        return self.decision.label

    def row(self) -> dict[str, Any]:
        """One flat row for a table."""
        body: dict[str, Any] = {"slide_id": self.prediction.slide_id}
        if self.label is not None:
            body["predicted"] = self.label
        curve = {f"survival_at_{time:g}": value for time, value in self.curve.items()}
        said = "; ".join(self.warnings)
        return body | self.readout | curve | {"order_sd": self.prediction.order_sd, "warnings": said}


class Predictor:
    """A run opened once and asked many times."""

    def __init__(self, run: str | Path | Run) -> None:
        self.run = run if isinstance(run, Run) else Run.open(run)
        self.task = self.run.task
        self.model: BagModel = self.run.model()
        self.orders = int(self.run.record["orders"])

    def answer(self, bag: Bag) -> Answer:
        """Predict; the same bag gives bitwise the same answer, whatever order it is stored in."""
        with _threads(int(self.run.record["threads"])):  # sums depend on their number
            prediction = infer(self.model, bag, self.orders)
        calibration = self.run.calibration
        readout = self.task.readout(prediction.logits, calibration)
        decision = self.task.decide(readout, calibration)
        return Answer(
            prediction,
            readout,
            decision,
            self.task.sentence(readout, decision),
            tuple(self._warnings(bag)),
            self.task.curve(readout, calibration),
        )

    def _warnings(self, bag: Bag) -> Iterator[str]:
        try:
            bag.provenance.require_same_recipe(self.run.provenance, where=bag.slide_id, against="the training bags")
        except BagError as error:
            yield f"not made like the training bags: {error.what}"
        if any(bag.slide_id.startswith(case) for case in self.run.record["train_cases"]):
            yield "this patient may be among the training patients: the prediction is not an independent one"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bags_of(sources: Iterable[str | Path], run: Run) -> Iterator[tuple[str, Bag | Exception]]:
    """Every bag of the sources: a store, a bag file in one, or a slide file (tiled and embedded as in training).

    A source that cannot be used is yielded with its error, and the rest goes on.
    """
    for source in sources:
        path = Path(source)
        try:
            yield from _bags_at(path, run)
        except Exception as error:  # one bad source must not end the batch
            yield str(path), error


def _bags_at(path: Path, run: Run) -> Iterator[tuple[str, Bag | Exception]]:
    if path.is_dir():
        store = BagStore.find(path, like=run.provenance)
        for slide_id in store.slide_ids():
            yield slide_id, _load(store, slide_id)
    elif path.suffix == ".safetensors":
        store = BagStore(path.parent)
        known = {store.bag_path(slide_id): slide_id for slide_id in store.slide_ids()}
        if path not in known:
            raise InputError("no record beside this bag says that it is whole", where=path, hint="Extract it again")
        yield known[path], _load(store, known[path])
    elif path.exists():
        yield path.stem, _extract(path, run)
    else:
        raise InputError("no such slide, bag or store", where=path)


def _load(store: BagStore, slide_id: str) -> Bag | Exception:
    try:
        return store.load(slide_id)
    except Exception as error:  # reported for this slide alone
        return error


def _extract(path: Path, run: Run) -> Bag:
    """Tile and embed a slide exactly as the run's training bags were."""
    from marble.extract import ExtractSpec, extract_slide, store_for

    settings = run.record["bags"].get("notes", {}).get("extract")
    if settings is None:
        raise InputError(
            "this run was trained on bags without extraction settings, so a slide cannot be prepared for it",
            where=path,
            hint="Give it a bag or a store made in the same way as the training bags",
        )
    spec = ExtractSpec.parse(settings, where=run.folder / "run.json")
    with TemporaryDirectory(prefix="marble-predict-") as scratch:
        record = extract_slide(path, spec, scratch)
        if record.status != "ok":
            raise SlideError(f"{record.status} at {record.stage}: {record.reason}", where=path)
        return store_for(scratch, spec).load(record.slide_id)  # stays mapped when the folder is gone
