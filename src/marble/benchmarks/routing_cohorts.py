"""The cohorts of `marble bench routing`, each an ordinary run of the small recipe that goes on where it was stopped.

focal, cross-scale, three-scale       made-up tokens (`synthetic.cohort`)
composed cross-scale, fine-only       real tiles put together anew (`synthetic.composed`), of --data
real                                  the bags of --data as they are, five folds by patient; a "seed" is a fold
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from marble import files
from marble.bags.store import BagStore
from marble.benchmarks.learning import ComposedCohort, plan, tissue_of, train
from marble.cohorts.split_files import write_splits
from marble.cohorts.splits import Split
from marble.experiment import Experiment
from marble.synthetic.cohort import write_cohort
from marble.training.results import read_cases
from marble.training.run import PlannedRun
from marble.training.run_folder import RunFolder

MadeUp = Literal["focal", "cross-scale", "three-scale"]
Composed = Literal["cross-scale", "fine-only"]
MADE_UP: tuple[MadeUp, ...] = get_args(MadeUp)
COMPOSED: dict[str, Composed] = {"composed cross-scale": "cross-scale", "composed fine-only": "fine-only"}
REAL = "real"
FOLDS = 5
#: slides of a made-up cohort to train on, to validate and to test
SIZES = (96, 24, 120)
MODEL = '[{ name = "marble" }]'


@dataclass(frozen=True, eq=False)
class Trained:
    """A run, the bags it was trained on, and what it was never shown."""

    run: RunFolder
    store: BagStore
    slides: tuple[str, ...]  # of the test part
    positive: tuple[bool, ...]  # of each
    groups: tuple[str, ...]  # the patient of each

    @property
    def training_slides(self) -> list[str]:
        return sorted(self.run.record["parts"]["train"])


def trained(root: Path, cohort: str, seed: int, data: str | Path | None, sizes: tuple[int, int, int]) -> Trained:
    """The run of a cohort and seed (of the real bags: a fold), trained now if that was not done before."""
    patients: Mapping[str, str] = {}
    if cohort == REAL:
        planned, store = _real(root, seed, data)
        patients = {slide: patient for slide, (patient, _) in tissue_of(data)[1].items()}
    elif cohort in COMPOSED:
        tissue, kinds = tissue_of(data)
        name = cohort.replace(" ", "-")
        composed = ComposedCohort(name, COMPOSED[cohort], "middle", seed, MODEL, baselines="[]")
        (planned,) = plan(root, tissue, kinds, composed)
        store = BagStore(composed.home(root) / "bags")
    else:
        planned, store = _made_up(root, next(kind for kind in MADE_UP if kind == cohort), seed, sizes)
    train([planned], None)
    run = RunFolder.open(planned.folder)
    tested = [case for case in read_cases(run.folder, run.task) if case.part == "test"]
    classes = planned.job.task.classes
    return Trained(
        run,
        store,
        tuple(case.slide_ids[0] for case in tested),
        tuple(case.target == classes[1] for case in tested),
        tuple(patients.get(case.slide_ids[0], case.case_id) for case in tested),
    )


def _made_up(root: Path, kind: MadeUp, seed: int, sizes: tuple[int, int, int]) -> tuple[PlannedRun, BagStore]:
    home = root / "cohorts" / f"made-up-{kind}-{seed}"
    table, store = write_cohort(home, kind, sum(sizes), seed=seed, two_slides=0.0)
    names = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    dealt = np.random.default_rng(seed).permutation(len(names))
    parts = dict(zip(("train", "val", "test"), np.split(dealt, np.cumsum(sizes[:2])), strict=True))
    mine = {part: tuple(names[i] for i in sorted(chosen)) for part, chosen in parts.items()}
    write_splits([Split(**mine, scheme="made-up", repeat=seed, seed=seed)], home / "splits")
    text = (
        f'name = "{kind}"\ncohort = "{home.name}/cohort.csv"\nbags = {{ store = "{home.name}/bags" }}\n'
        f'task = "classification"\nsplit = {{ scheme = "files", files = "{home.name}/splits/made-up" }}\n'
        f'train = {{ recipe = "small", val_orders = 1 }}\nmodels = {_model(kind)}\nbaselines = []\n'
    )
    path = files.publish(root / "cohorts" / f"{home.name}.toml", text)
    (planned,) = Experiment.load(path).plan(root / "runs")
    return planned, store


def _model(kind: MadeUp) -> str:
    return '[{ name = "marble", levels = 3 }]' if kind == "three-scale" else MODEL


def _real(root: Path, fold: int, data: str | Path | None) -> tuple[PlannedRun, BagStore]:
    store, _ = tissue_of(data)
    labels = Path(str(data)).resolve() / "labels.csv"
    name = f"{REAL}-{labels.parent.name}"
    text = (
        f'name = "{name}"\ncohort = {{ path = "{labels}", label = "malignant", scored_by = "slide" }}\n'
        f'bags = {{ store = "{store.root.resolve()}" }}\ntask = "classification"\n'
        f'split = {{ scheme = "kfold", folds = {FOLDS}, repeats = 1 }}\n'
        f'train = {{ recipe = "small", val_orders = 1 }}\nmodels = {MODEL}\nbaselines = []\n'
    )
    path = files.publish(root / "cohorts" / f"{name}.toml", text)
    planned = Experiment.load(path).plan(root / "runs")
    return next(one for one in planned if one.about["repeat"] == fold), store
