"""A run's router: learned from its training slides, its budget chosen on its validation cases, sealed into its folder.

routing.safetensors    the router's weights
routing.json           written last: the run it belongs to, the curve on validation, the budget, and a hash over it all

Routing is an addition to a finished run and changes nothing in it. It is refused as soon as the run or one of the two
files is not what it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marble import files
from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.bags.tensors import map_file, to_bytes
from marble.errors import BagError, InputError, RunError
from marble.models import BagModel
from marble.models.inference import infer
from marble.models.routing import Router, allowance, check_budget, distil, keep_best, routed
from marble.tasks.metric import Undefined
from marble.training.evaluate import CasePrediction, columns
from marble.training.job import CaseSpec, TargetSpec
from marble.training.results import read_cases
from marble.training.run_folder import RunFolder

FORMAT = 1
RECORD, WEIGHTS = "routing.json", "routing.safetensors"
BUDGETS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75)
#: below this many validation cases the budget's choice is mostly chance, and the record says so
FEW_CASES = 30
_MAKE = "Make it with `marble route RUN --bags STORE`"


@dataclass(frozen=True, eq=False)
class Routing:
    """A run's router, opened for use with one budget."""

    model: BagModel
    router: Router
    budget: float
    record: dict[str, Any]

    @property
    def caution(self) -> str | None:
        """Why the share that is sealed may not be enough, where it is that one that is used."""
        sealed = self.budget == self.record["budget"] < 1
        return self.record.get("caution") if sealed else None

    @staticmethod
    def open(run: RunFolder, model: BagModel, budget: float | None = None) -> Routing:
        """The sealed router of a run; with the budget chosen on validation unless another is given."""
        if budget is not None:
            check_budget(budget)
        record = read_routing(run.folder)
        router = Router(record["width"], record["levels"])
        tensors, _ = map_file(run.folder / WEIGHTS)
        router.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()})
        return Routing(model, router.eval(), record["budget"] if budget is None else budget, record)

    def prune(self, bag: Bag) -> Bag:
        """The branches worth embedding; a bag that was made of chosen branches is taken as it is."""
        if "route" in bag.provenance.notes:
            return bag
        if bag.depth != self.router.levels:
            raise BagError(
                f"the bag has {bag.depth} levels, the router was made for {self.router.levels}", where=bag.slide_id
            )
        return routed(bag, self.budget, self.router.scorer(self.model))

    def keep(self, seen: Bag, below: Tensor, total: int, depth: int) -> Tensor:
        """(T,) the choice of `prune` at one level of a slide that is being read; see `extract.Chooser`."""
        if self.budget == 1:
            return torch.ones(len(below), dtype=torch.bool)
        scores = self.router.scorer(self.model)(seen)
        return keep_best(scores, below, allowance(self.budget, total, seen.depth - 1, depth))


def calibrate(
    run: RunFolder, store: BagStore, tolerance: float, budgets: Sequence[float] = BUDGETS, seed: int = 0
) -> dict[str, Any]:
    """Learn the router, choose the budget, seal both into the run's folder; return the record.

    Args:
        run: a finished run of a model that reads the finest of several levels.
        store: the bags it was trained on.
        tolerance: how much of the run's own metric (AUC, C-index, R2) on validation may be lost.
        budgets: shares of fine tiles to try; 1 is always among them.
        seed: of the router.
    """
    if not 0 <= tolerance < math.inf:  # what is no number could not be recorded
        raise InputError(f"tolerance must not be negative, nor infinite, got {tolerance:g}", hint="For example 0.01")
    for budget in budgets:
        check_budget(budget)
    _refuse_other_bags(run, store)
    model, orders = run.model(), int(run.record["orders"])
    train, val = _slides_to_learn_from(run, store), _validation_cases(run)
    router = distil(model, (store.load(slide) for slide in train), orders, seed)
    curve = [_scored(run, model, router, store, val, budget, orders) for budget in sorted({*budgets, 1.0})]
    weights = to_bytes(router.state_dict(), {"width": router.width, "levels": router.levels})
    files.publish(run.folder / WEIGHTS, weights)
    record = {
        "format": FORMAT,
        "run_sha256": files.sha256_file(run.folder / "run.json"),
        "router_sha256": files.sha256_bytes(weights),
        "width": router.width,
        "levels": router.levels,
        "slides": len(train),
        "cases": len(val),
        "metric": run.task.select_by,
        "tolerance": tolerance,
        "curve": curve,
        "budget": smallest_budget(curve, tolerance),
        "seed": seed,
    }
    if len(val) < FEW_CASES:
        record["caution"] = (
            f"the budget was chosen on {len(val)} validation cases, which cannot tell a loss of {tolerance:g} in "
            f"{run.task.select_by} from chance: with fewer than {FEW_CASES} it is a guess"
        )
    record = files.seal(record)
    files.publish_json(run.folder / RECORD, record)
    return record


def smallest_budget(curve: Sequence[dict[str, float]], tolerance: float) -> float:
    """The smallest budget from which on no budget loses more than the tolerance; one lucky point is not enough."""
    ordered = sorted(curve, key=lambda point: point["budget"], reverse=True)
    whole = ordered[0]["metric"]
    best = ordered[0]["budget"]
    for point in ordered:
        if whole - point["metric"] > tolerance + 1e-12:
            break
        best = point["budget"]
    return best


def read_routing(folder: str | Path) -> dict[str, Any]:
    """A run's routing record, after its seal, its run and its weights were compared."""
    root = Path(folder)
    path = root / RECORD
    if not path.exists():
        raise RunError("this run has no router", where=root, hint=_MAKE)
    record: dict[str, Any] = files.read_json(path)
    if not isinstance(record, dict) or not files.is_sealed(record):
        raise RunError("changed since it was written", where=path, hint=_MAKE)
    if record["format"] != FORMAT:
        raise RunError(f"routing format {record['format']} is not {FORMAT}", where=path, hint=_MAKE)
    if record["run_sha256"] != files.sha256_file(root / "run.json"):
        raise RunError("made for another run than the one in this folder", where=path, hint=_MAKE)
    weights = root / WEIGHTS
    if not weights.exists() or files.sha256_file(weights) != record["router_sha256"]:
        raise RunError("missing or changed since it was written", where=weights, hint=_MAKE)
    return record


def _scored(
    run: RunFolder,
    model: BagModel,
    router: Router,
    store: BagStore,
    cases: Sequence[CaseSpec],
    budget: float,
    orders: int,
) -> dict[str, float]:
    """One point of the curve: the metric on validation, and the share of fine tiles that were really used."""
    task, scorer = run.task, router.scorer(model)
    rows, used, there = [], 0, 0
    for case in cases:
        found = []
        for slide in case.slides:
            bag = store.load(slide)
            rest = routed(bag, budget, scorer)
            used, there = used + len(rest.finest), there + len(bag.finest)
            found.append(infer(model, rest, orders))
        logits = torch.stack([one.logits for one in found]).mean(dim=0)
        rows.append(
            CasePrediction(case, logits, task.readout(logits, run.calibration), max(one.order_sd for one in found))
        )
    metric = task.metrics([case.target.value() for case in cases], columns(rows, task))[task.select_by]
    if isinstance(metric, Undefined):
        raise RunError(f"validation {task.select_by} is {metric}, so no budget can be chosen", where=run.folder)
    return {"budget": float(budget), "share": used / there, "metric": float(metric)}


def _refuse_other_bags(run: RunFolder, store: BagStore) -> None:
    """A share of fine tiles holds for the lattice it was measured on.

    Of what other tools made the settings are not known, so only bags of one source can be compared.
    """
    ours, theirs = run.provenance, store.common()
    if ours.recipe()["source"] != theirs.recipe()["source"]:
        return
    try:
        theirs.require_same_recipe(ours, where=store.root, against="the training bags")
    except BagError as error:
        hint = "Give the store that the run was trained on"
        raise BagError(f"not made like the training bags: {error.what}", where=store.root, hint=hint) from None


def _slides_to_learn_from(run: RunFolder, store: BagStore) -> list[str]:
    """Slides of training patients that are in the store."""
    train = sorted(slide for slide in run.record["parts"]["train"] if slide in store)
    if not train:
        raise InputError("none of the run's training slides is in this store", where=store.root)
    return train


def _validation_cases(run: RunFolder) -> list[CaseSpec]:
    stored = (case for case in read_cases(run.folder, run.task) if case.part == "val")
    return [CaseSpec(case_id=case.case_id, slides=case.slide_ids, target=TargetSpec.of(case.target)) for case in stored]
