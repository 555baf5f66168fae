"""`marble bench orders`: is an order used where it matters, and what does it cost where it cannot?

    neighbours     the class is in which tiles lie side by side along a row (`synthetic.neighbours`), in nothing else
    cross-scale    the class is in which tiles lie inside which (`synthetic.bags`); no order says anything

MARBLE is trained with every order of its scan, with one scan from either end, and with the two mixers that know no
order, on the same patients. Every cohort is an ordinary experiment below OUT, compared as any other: paired tests
against the paper's shuffled scan. What was stopped goes on there; OUT also gets the table as `orders.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from marble import files
from marble.benchmarks.learning import cells, report, train
from marble.benchmarks.learning_tables import markdown
from marble.cohorts.split_files import write_splits
from marble.cohorts.splits import Split
from marble.experiment import Experiment
from marble.reports.collect import collect
from marble.reports.compare import compare
from marble.synthetic.bags import BagRecipe
from marble.synthetic.cohort import Kind, write_cohort
from marble.training.run import PlannedRun

COHORTS: tuple[Kind, ...] = ("neighbours", "cross-scale")
SEEDS = (0, 1, 2)
#: patients to train on, to validate and to test
SIZES, QUICK_SIZES = (96, 16, 80), (8, 4, 8)
EPOCHS = 8
BAGS = BagRecipe(dim=16, coarse=(6, 10))
REFERENCE = "shuffle"
#: label -> options; all have the same width and size of state
VARIANTS = {
    REFERENCE: "",
    "raster": ', order = "raster"',
    "raster, both directions": ', order = "raster", directions = 2',
    "hilbert": ', order = "hilbert"',
    "coarse-attention": ', order = "coarse-attention"',
    "learned": ', order = "learned"',
    "set mixer": ', mixer = "set"',
    "mlp mixer": ', mixer = "mlp"',
}


def run(
    json_path: str | Path | None = None,
    quick: bool = False,
    out: str | Path | None = None,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, Any]:
    """Train, compare, print, and write JSON to `json_path` if given; `quick` is one seed, one epoch, few patients."""
    if out is None:
        with TemporaryDirectory(prefix="marble-orders-") as scratch:
            return run(json_path, quick, scratch, seeds)
    root = Path(out)
    sizes, epochs, seeds = (QUICK_SIZES, 1, seeds[:1]) if quick else (SIZES, EPOCHS, seeds)
    for seed in seeds:  # a seed of both cohorts before the next, so that a stopped run has something of each
        for kind in COHORTS:
            train(_plan(root, kind, seed, sizes, epochs), None)
    tables = [
        {"cohort": kind, "seeds": list(seeds), "models": cells(compare(collect(root / "runs" / kind, REFERENCE)))}
        for kind in COHORTS
    ]
    files.publish(root / "orders.md", markdown(tables))
    return report(tables, json_path)


def _plan(root: Path, kind: Kind, seed: int, sizes: tuple[int, int, int], epochs: int) -> list[PlannedRun]:
    """The runs of one cohort and seed: an experiment file as one writes it by hand, its repeat numbered by the seed."""
    home = root / "cohorts" / f"{kind}-{seed}"
    table, _ = write_cohort(home, kind, sum(sizes), BAGS, seed, two_slides=0.0)
    names = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    pairs = np.random.default_rng(seed).permutation(len(names) // 2)  # one patient of each class, dealt together
    train_on, val, test = (
        tuple(names[2 * pair + which] for pair in sorted(part) for which in (0, 1))
        for part in np.split(pairs, np.cumsum(sizes[:2]) // 2)
    )
    split = Split(train=train_on, val=val, test=test, scheme="made-up", repeat=seed, seed=seed)
    write_splits([split], home / "splits")
    models = ", ".join(
        f'{{ name = "marble", label = "{label}", d_state = 16{options} }}' for label, options in VARIANTS.items()
    )
    length = f"epochs = {epochs}, patience = {epochs}, warmup = 1"
    text = (
        f'name = "{kind}"\ncohort = "{home.name}/cohort.csv"\nbags = {{ store = "{home.name}/bags" }}\n'
        f'task = "classification"\nsplit = {{ scheme = "files", files = "{home.name}/splits/made-up" }}\n'
        f'train = {{ recipe = "common", {length}, lr = 3e-3, val_orders = 1 }}\n'
        f"models = [{models}]\nbaselines = []\n"
    )
    return Experiment.load(files.publish(root / "cohorts" / f"{home.name}.toml", text)).plan(root / "runs")
