"""`marble bench learning`: which models learn what, on cohorts composed of real tissue.

    marble bench learning --data DIR --out OUT            the models side by side on every signal
    marble bench recipe --data DIR --out OUT              the candidates for the recipe for small cohorts

`--signals`, `--strengths` and `--seeds` take some of the cohorts, `--no-peers` leaves out the other papers' models.

DIR holds a bag store (what `marble import` or `marble extract` made) and `labels.csv` with `slide_id`, `patient_id` or
`case_id`, and `malignant` (0 or 1): the kind of its tiles. Every cohort is an ordinary experiment below OUT, with the
same predictions, records and reports, and goes on where it was stopped; OUT also gets all results as `learning.md` and
`learning.svg`. The seeds of the search are never shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from marble import files
from marble.bags.store import BagStore
from marble.benchmarks.learning_tables import write_tables
from marble.compute import Executor, Inline
from marble.errors import InputError, RunError
from marble.experiment import Experiment, find_store
from marble.reports.collect import collect
from marble.reports.compare import Comparison, compare
from marble.synthetic.composed import SIGNALS, STRENGTHS, Signal, Strength, write_composed
from marble.tabular import read_table
from marble.tasks.metric import Undefined
from marble.training.protocol import run_all
from marble.training.run import PlannedRun
from marble.version import VERSION

SEEDS = (0, 1, 2, 3, 4)
#: all are trained by the small recipe
MODELS = """[
  { name = "marble" },
  { name = "marble", label = "shuffled parents", fusion = "shuffled" },
  { name = "marble", label = "mamba2 mixer", mixer = "mamba2" },
  { name = "marble", label = "mlp mixer", mixer = "mlp" },
  { name = "marble", label = "fine only", levels = 1 },
  { name = "marble", label = "coarse only", levels = 1, level = 0 },
  { name = "abmil" },
]"""
#: the other models of the paper's tables, on the signals that MARBLE is made for
PEERS = """[
  { name = "marble" },
  { name = "clam-sb" },
  { name = "dsmil" },
  { name = "dtfd" },
  { name = "transmil" },
  { name = "s4mil" },
  { name = "mambamil" },
  { name = "srmambamil" },
  { name = "2dmambamil" },
]"""
PEERS_ON: tuple[Signal, ...] = ("cross-scale", "survival")
PEER_SEEDS = 2  # the first ones: a step of some peers takes as long as ten of MARBLE's


@dataclass(frozen=True)
class ComposedCohort:
    """A cohort composed of real tissue, and what is trained on it, as the experiment file has it."""

    name: str  # of the experiment
    signal: Signal
    strength: Strength
    seed: int
    models: str
    train: str = ""  # settings beside those of the recipe
    baselines: str = '["probe", "tiles"]'
    bags: int | None = None  # to train on, if not as many as all composed cohorts have

    def home(self, root: Path) -> Path:
        """The folder of its table, splits and bags; experiments on the same tissue share it."""
        size = "" if self.bags is None else f"-{self.bags}"
        return root / "cohorts" / f"{self.signal}-{self.strength}{size}-{self.seed}"


def run(
    json_path: str | Path | None = None,
    quick: bool = False,
    data: str | Path | None = None,
    out: str | Path | None = None,
    signals: Sequence[Signal] = SIGNALS,
    strengths: Sequence[Strength] | None = None,
    seeds: Sequence[int] = SEEDS,
    peers: bool = True,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Compose, train, compare; print a line per model and write all figures to `json_path` if given.

    `peers` also takes the other models of the paper. `quick` takes one seed, no peers, and the middle strength unless
    others are named.
    """
    strengths = strengths or (("middle",) if quick else STRENGTHS)
    if quick:
        seeds, peers = seeds[:1], False
    store, tissue = tissue_of(data)
    root = Path(out or "bench-learning")
    comparisons = [
        (signal, strength, f"{signal}-{strength}", MODELS, tuple(seeds)) for strength in strengths for signal in signals
    ]
    if peers:
        comparisons += [
            (signal, "middle", f"{signal}-middle-peers", PEERS, tuple(seeds[:PEER_SEEDS]))
            for signal in PEERS_ON
            if signal in signals
        ]
    for seed in seeds:  # a seed of every cohort before the next, so that a stopped run has something of all
        planned: list[PlannedRun] = []
        for signal, strength, name, models, wanted in comparisons:
            if seed in wanted:
                planned += plan(root, store, tissue, ComposedCohort(name, signal, strength, seed, models))
        train(planned, executor)
    tables = [
        {"signal": signal, "strength": strength, "cohort": name, "seeds": list(wanted),
         "models": cells(compare(collect(root / "runs" / name)))}
        for signal, strength, name, _, wanted in comparisons
    ]  # fmt: skip
    write_tables(tables, root)
    return report(tables, json_path)


def tissue_of(data: str | Path | None) -> tuple[BagStore, dict[str, tuple[str, bool]]]:
    """The store below `data` and {slide: (patient, of the marked kind)} from its labels.csv."""
    if data is None:
        raise InputError("no tissue to compose cohorts of", hint="Give --data a folder with bags and labels.csv")
    table = read_table(Path(data) / "labels.csv")
    patient = "patient_id" if "patient_id" in table else table.require("case_id")
    slide, marked = table.require("slide_id"), table.require("malignant")
    tissue = {table.cell(row, slide): (table.cell(row, patient), table.cell(row, marked) == "1") for row in table.rows}
    store = find_store(Path(data))
    have = set(store.slide_ids())
    return store, {name: kind for name, kind in tissue.items() if name in have}


def plan(
    root: Path, store: BagStore, tissue: Mapping[str, tuple[str, bool]], cohort: ComposedCohort
) -> list[PlannedRun]:
    """The runs of one cohort: an experiment file that could be run by hand, its repeat numbered by the seed."""
    home = write_composed(cohort.home(root), store, tissue, cohort.signal, cohort.strength, cohort.seed, cohort.bags)
    text = (
        f'name = "{cohort.name}"\ncohort = "{home.name}/cohort.csv"\nbags = {{ store = "{home.name}/bags" }}\n'
        f'task = "{"survival" if cohort.signal == "survival" else "classification"}"\n'
        f'split = {{ scheme = "files", files = "{home.name}/splits/composed" }}\n'
        f'train = {{ recipe = "small", val_orders = 1{cohort.train and ", " + cohort.train} }}\n'
        f"models = {cohort.models}\nbaselines = {cohort.baselines}\n"
    )
    path = files.publish(root / "cohorts" / f"{cohort.name}-{cohort.seed}.toml", text)
    return Experiment.load(path).plan(root / "runs")


def train(planned: Sequence[PlannedRun], executor: Executor | None) -> list[dict[str, Any]]:
    """Train all of them, here unless an executor is given; their records, or an error that names what failed."""
    outcomes = run_all(planned, executor or Inline())
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        what = f"{len(failed)} of {len(outcomes)} runs failed: {failed[0].reason}"
        raise RunError(what, where=failed[0].planned.folder)
    return [outcome.record for outcome in outcomes if outcome.record is not None]


def cells(comparison: Comparison) -> list[dict[str, Any]]:
    """Mean, interval and test of every model, with the calibration error beside it."""
    metric = comparison.tested[0] if comparison.tested else comparison.results.task.select_by
    found = []
    for row in comparison.rows:
        cell, ece = row.cells[metric], row.cells.get("ece")
        orders = sorted(float(sd) for repeat in row.model.repeats for sd in repeat.test.order_sd)
        found.append(
            {
                "model": row.model.key,
                "metric": metric,
                "mean": _number(cell.mean),
                "interval": None if cell.interval is None else asdict(cell.interval),
                "ece": None if ece is None else _number(ece.mean),
                "difference": None if metric not in row.tests else asdict(row.tests[metric]),
                "p_holm": row.corrected.get(metric),
                "repeats": len(row.model.repeats),
                "parameters": row.model.record["model"]["parameters"],
                "median_order_sd": orders[len(orders) // 2],
            }
        )
    return found


def report(tables: list[dict[str, Any]], json_path: str | Path | None) -> dict[str, Any]:
    console = Console()
    for table in tables:
        console.print(f"\n{table['cohort']}, seeds {table['seeds']}")
        for row in table["models"]:
            p = "" if row["p_holm"] is None else f"p {row['p_holm']:.3f}"
            ece = "" if row["ece"] is None else f"ECE {row['ece']:.3f}"
            console.print(f"  {row['model']:24} {row['metric']} {row['mean']:.3f}  {ece}  {p}")
    body = {"version": VERSION, "tables": tables}
    if json_path is not None:
        files.publish_json(json_path, body)
    return body


def _number(value: float | Undefined) -> float | None:
    return None if isinstance(value, Undefined) else float(value)
