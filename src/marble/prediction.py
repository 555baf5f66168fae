"""A trained run and a bag in, an answer out.

`predict(model, bag)` is the public name of the one inference path (`models.inference.infer`); `Predictor` is what
`marble predict`, the heatmaps and the viewer share, so the number they show is the same number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marble import files
from marble.bags.bag import Bag
from marble.errors import BagError, InputError
from marble.models.base import BagModel, BagOrTokens, bag_of
from marble.models.inference import Prediction, infer
from marble.models.inference import infer as predict
from marble.models.routing import check_budget
from marble.surroundings import plain_torch
from marble.tasks.base import Decision
from marble.threads import torch_threads
from marble.training.membership import Membership
from marble.training.routing import Routing, read_routing
from marble.training.run_folder import RunFolder

__all__ = ["Answer", "Predictor", "RunChooser", "chooser_of", "predict"]


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

    @plain_torch()
    def __init__(
        self, run: str | Path | RunFolder, *, device: str = "cpu", routed: bool = False, budget: float | None = None
    ) -> None:
        self.run = run if isinstance(run, RunFolder) else RunFolder.open(run)
        self.task = self.run.task
        self.model: BagModel = self.run.model(device)
        self.orders = int(self.run.record["orders"])
        self.threads = int(self.run.record["threads"])  # sums depend on their number
        self.members = self.run.members
        self.routing: Routing | None = None
        if budget is not None:
            check_budget(budget)
        if routed or (budget is not None and budget < 1):  # the whole of a slide needs no router
            self.routing = Routing.open(self.run, self.model, budget)

    @plain_torch()
    def looked_at(self, bag: BagOrTokens) -> Bag:
        """What of a bag is looked at: the branches that the run's router chooses, or all of it."""
        bag = bag_of(bag)
        self._refuse_other_encoder(bag)
        if self.routing is None:
            return bag
        with torch_threads(self.threads):
            return self.routing.prune(bag)

    @plain_torch()
    def answer(self, bag: BagOrTokens, seen: Bag | None = None) -> Answer:
        """Predict; the same bag gives bitwise the same answer, whatever order it is stored in.

        `seen` is what of it is looked at, where that was chosen by another run's router.
        """
        bag = bag_of(bag)
        self._refuse_other_encoder(bag)
        seen = self.looked_at(bag) if seen is None else seen
        prediction = self._inferred(seen)
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

    def _inferred(self, seen: Bag) -> Prediction:
        """The model's answer; of a bag it cannot read because of its levels, what a run's user can do about it."""
        try:
            with torch_threads(self.threads):
                return infer(self.model, seen, self.orders)
        except BagError as error:
            trained = len(self.run.provenance.levels)
            if trained in (0, seen.depth):  # 0: bags that do not say how they were made
                raise
            hint = f"Give the slide itself, or a bag of {trained} levels, as the run was trained on"
            raise BagError(error.what, where=seen.slide_id, hint=hint) from None

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
        if self.routing is not None and self.routing.caution is not None:
            yield f"routed: {self.routing.caution}"


@dataclass(frozen=True)
class RunChooser:
    """A run's router as extraction takes it: opened in the process that works on the slide."""

    folder: Path
    budget: float

    def identity(self) -> dict[str, Any]:
        return {"routing": read_routing(self.folder)[files.SEAL], "budget": self.budget}

    def keep(self, seen: Bag, below: NDArray[np.int64], total: int, depth: int) -> NDArray[np.bool_]:
        predictor = _opened(self.folder, self.budget, read_routing(self.folder)[files.SEAL])
        assert predictor.routing is not None
        if depth != predictor.routing.router.levels:
            raise InputError(f"slides of {depth} levels, but the router was made for {predictor.routing.router.levels}")
        with torch_threads(int(predictor.run.record["threads"])):
            kept: NDArray[np.bool_] = predictor.routing.keep(seen, torch.from_numpy(below), total, depth).numpy()
        return kept


def chooser_of(run: str | Path, budget: float | None = None) -> RunChooser:
    """The router of a run, for `marble.extract`; with the budget sealed into the run unless another is given."""
    folder = Path(run)
    predictor = Predictor(folder, routed=True, budget=budget)
    assert predictor.routing is not None
    return RunChooser(folder.resolve(), predictor.routing.budget)


@lru_cache(maxsize=2)
def _opened(folder: Path, budget: float, seal: str) -> Predictor:
    """The run with its router; with another `seal`, of a run or a router made again, it is opened again."""
    del seal
    return Predictor(folder, routed=True, budget=budget)
