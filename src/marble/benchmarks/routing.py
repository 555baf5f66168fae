"""`marble bench routing`: accuracy against the share of fine tiles that are embedded, and the time that saves.

On made-up cohorts, for several seeds: MARBLE is trained as always, a router is learned from its training slides, and
the test slides are predicted with fewer and fewer fine tiles, chosen

    routed    by the router, from the coarse levels
    random    by chance
    oracle    by the attention of the full model, which nobody has who has not embedded everything

Then a drawn slide goes all the way to a prediction, with the default encoder, at a budget of 0.25 and whole.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.benchmarks.measure import interleaved, machine
from marble.extract import ExtractSpec, extract_slide, store_for
from marble.files import publish_json
from marble.models import COMMON, BagModel, build
from marble.models.inference import infer
from marble.models.routing import (
    Router,
    Scorer,
    allowance,
    distil,
    keep_best,
    oracle_scorer,
    random_scorer,
    routed,
)
from marble.slides.lattice import PyramidSpec
from marble.synthetic.cohort import Kind, write_cohort
from marble.synthetic.slides import write_slide
from marble.tasks.metric import Undefined
from marble.training.evaluate import CasePrediction, columns
from marble.training.fit import fit
from marble.training.job import CaseSpec, FitJob, TargetSpec, TaskSpec

COHORTS: tuple[Kind, ...] = ("focal", "cross-scale", "three-scale")
BUDGETS = (0.05, 0.1, 0.25, 0.5, 1.0)
SEEDS = 5
TRAIN, VAL, TEST = 96, 24, 120
EPOCHS, RATE = 12, 2e-3
BUDGET = 0.25
SLIDE_PX = (8192, 6144)
CLASSES = TaskSpec(name="classification", classes=("negative", "positive"))


def run(json_path: str | Path | None = None, quick: bool = False) -> dict[str, Any]:
    """Measure, print, and write JSON to `json_path` if given; `quick` is one seed, few slides and a small slide."""
    seeds, sizes, epochs = (1, (16, 8, 16), 1) if quick else (SEEDS, (TRAIN, VAL, TEST), EPOCHS)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="marble-routing-") as scratch:
        for kind in COHORTS[:1] if quick else COHORTS:
            for seed in range(seeds):
                rows += _curve(Path(scratch) / kind / str(seed), kind, seed, sizes, epochs)
        time = _whole_path(Path(scratch), (1536, 1024) if quick else SLIDE_PX, "colour" if quick else "lite0")
    result = {"benchmark": "routing", "machine": machine(), "rows": rows, "slide": time}
    _print(result)
    if json_path is not None:
        publish_json(json_path, result)
    return result


# ---- the curve -----------------------------------------------------------------------------------------------------


def _curve(folder: Path, kind: Kind, seed: int, sizes: tuple[int, int, int], epochs: int) -> list[dict[str, Any]]:
    train, val, test = sizes
    table, store = write_cohort(folder, kind, train + val + test, seed=seed, two_slides=0.0)
    named = [line.split(",") for line in table.read_text().splitlines()[1:]]
    cases = [CaseSpec(case_id=row[0], slides=(row[1],), target=TargetSpec(label=row[2])) for row in named]
    order = np.random.default_rng(seed).permutation(len(cases))
    parts = [[cases[i] for i in part] for part in np.split(order, [train, train + val])]
    bag = store.load(parts[0][0].slides[0])
    job = FitJob(
        model="marble",
        options={"d_state": 16, "levels": bag.depth},
        dim=bag.finest.dim,
        task=CLASSES,
        recipe=replace(COMMON, epochs=epochs, warmup=1, lr=RATE, patience=epochs),
        store=str(store.root),
        bags_sha256="0" * 64,
        train=tuple(parts[0]),
        val=tuple(parts[1]),
        split="made-up",
        seed=seed,
        val_orders=1,
    )
    model = fit(job, folder / "fit").eval()
    router = distil(model, (store.load(case.slides[0]) for case in parts[0]), orders=1, seed=seed)
    choices: dict[str, Callable[[Bag], Scorer]] = {
        "routed": lambda _bag: router.scorer(model),
        "random": lambda _bag: random_scorer(seed),
        "oracle": lambda bag: oracle_scorer(model, bag, 1),
    }
    return [
        {"cohort": kind, "seed": seed, "choice": name, "budget": budget}
        | _scored(model, store, parts[2], budget, scorer)
        for name, scorer in choices.items()
        for budget in BUDGETS
    ]


def _scored(
    model: BagModel, store: BagStore, cases: Sequence[CaseSpec], budget: float, scorer: Callable[[Bag], Scorer]
) -> dict[str, float]:
    task, rows, used, there = CLASSES.build(), [], 0, 0
    for case in cases:
        bag = store.load(case.slides[0])
        rest = bag if budget == 1 else routed(bag, budget, scorer(bag))
        used, there = used + len(rest.finest), there + len(bag.finest)
        found = infer(model, rest, orders=2)
        rows.append(CasePrediction(case, found.logits, task.readout(found.logits), found.order_sd))
    metric = task.metrics([case.target.value() for case in cases], columns(rows, task))["auc"]
    return {"share": used / there, "auc": float("nan") if isinstance(metric, Undefined) else float(metric)}


# ---- the time ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """A router that was never trained: what it costs does not depend on what it knows."""

    model: BagModel
    router: Router
    budget: float

    def identity(self) -> dict[str, Any]:
        return {"budget": self.budget}

    def keep(self, seen: Bag, below: NDArray[np.int64], total: int, depth: int) -> NDArray[np.bool_]:
        scores = self.router.scorer(self.model)(seen)
        most = allowance(self.budget, total, seen.depth - 1, depth)
        kept: NDArray[np.bool_] = keep_best(scores, torch.from_numpy(below), most).numpy()
        return kept


def _whole_path(folder: Path, size_px: tuple[int, int], encoder: str) -> dict[str, Any]:
    """Seconds from slide file to prediction, whole and routed, and the tiles embedded."""
    slide = write_slide(folder / "slide.tiff", size_px, mpp=0.5, seed=1)
    spec = ExtractSpec(pyramid=PyramidSpec(magnifications=(5, 20)), encoders=(encoder,))
    tiles: dict[str, int] = {}
    model: BagModel | None = None

    def whole_path(name: str, budget: float | None) -> None:
        nonlocal model
        with TemporaryDirectory(dir=folder) as scratch:
            choice = None if budget is None or model is None else _Choice(model, Router(model.dim, 2), budget)
            record = extract_slide(slide, spec, scratch, chooser=choice)
            bag = store_for(scratch, spec, choice).load(record.slide_id)
            if model is None:
                model = build("marble", bag.finest.dim, 2).eval()
            infer(model, bag)
            tiles[name] = len(bag.finest)

    cases = {"whole": lambda: whole_path("whole", None), "routed": lambda: whole_path("routed", BUDGET)}
    seconds = interleaved(cases, repeats=1)
    ratio = seconds["routed"] / seconds["whole"]
    return {"budget": BUDGET, "encoder": encoder, "fine_tiles": tiles, "seconds": seconds, "ratio": ratio}


def _print(result: dict[str, Any]) -> None:
    console = Console()
    for kind in dict.fromkeys(row["cohort"] for row in result["rows"]):
        mine = [row for row in result["rows"] if row["cohort"] == kind]
        table = Table(title=f"{kind}: test AUC, mean (SD) over {len({row['seed'] for row in mine})} seeds")
        for heading in ("budget", "fine tiles", "routed", "random", "oracle"):
            table.add_column(heading, justify="right")
        for budget in BUDGETS:
            here = [row for row in mine if row["budget"] == budget]
            share = statistics.mean(row["share"] for row in here if row["choice"] == "routed")
            cells = []
            for choice in ("routed", "random", "oracle"):
                found = [row["auc"] for row in here if row["choice"] == choice]
                spread = statistics.stdev(found) if len(found) > 1 else 0.0
                cells.append(f"{statistics.mean(found):.3f} ({spread:.3f})")
            table.add_row(f"{budget:g}", f"{share:.3f}", *cells)
        console.print(table)
    slide = result["slide"]
    console.print(
        f"slide to prediction with {slide['encoder']}, budget {slide['budget']:g}: {slide['ratio']:.2f} times the "
        f"whole path ({slide['fine_tiles']['routed']:,} of {slide['fine_tiles']['whole']:,} fine tiles)"
    )
