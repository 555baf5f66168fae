"""`marble bench recipe`: the search behind `recipe = "small"`, on development cohorts composed of real tissue.

Every candidate differs in one thing from the recipe as it stands. The plan, and what came of it, is in
docs/decisions/small-cohorts.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from marble import files
from marble.benchmarks.learning import ComposedCohort, plan, tissue_of, train
from marble.compute import Executor
from marble.reports.collect import collect
from marble.synthetic.composed import Signal, Strength
from marble.version import VERSION

SEEDS = (100, 101)
SIGNALS: tuple[Signal, ...] = ("cross-scale", "fine-only", "coarse-only")
STRENGTH: Strength = "middle"


@dataclass(frozen=True)
class Candidate:
    """One way to train MARBLE: its options and settings that are not the recipe's, as the experiment file has them."""

    model: str = ""
    train: str = ""


CANDIDATES: dict[str, Candidate] = {
    "base": Candidate(),
    "start fine": Candidate('start = "fine"'),
    "readout all": Candidate('readout = "all"'),
    "mixer mamba2": Candidate('mixer = "mamba2"'),
    "mixer mlp": Candidate('mixer = "mlp"'),
    "not standardised": Candidate(train="standardise = false"),
    "start default": Candidate('start = "default"'),
    "lr 1e-3": Candidate(train="lr = 1e-3"),
    "lr 1e-4": Candidate(train="lr = 1e-4"),
    "dropout 0": Candidate("dropout = 0.0"),
    "width 128": Candidate("project = 128"),
    "ema 0.99": Candidate(train="ema = 0.99"),
    "least loss": Candidate(train='select_by = "loss"'),
    "twice the steps": Candidate(train="epochs = 20"),
    "block literal": Candidate('block = "literal"'),
    "start even": Candidate('start = "even"'),
}


def run(
    json_path: str | Path | None = None,
    quick: bool = False,
    data: str | Path | None = None,
    out: str | Path | None = None,
    candidates: Sequence[str] = tuple(CANDIDATES),
    signals: Sequence[Signal] = SIGNALS,
    seeds: Sequence[int] = SEEDS,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Train every candidate on every development cohort; `quick` takes the first three and one seed."""
    if quick:
        candidates, seeds = candidates[:3], seeds[:1]
    store, tissue = tissue_of(data)
    root = Path(out or "bench-recipe")
    console = Console()
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for name in candidates:
            chosen = CANDIDATES[name]
            model = f'[{{ name = "marble"{chosen.model and ", " + chosen.model} }}]'
            folders = {signal: f"{name}-{signal}".replace(" ", "-") for signal in signals}
            cohorts = [
                ComposedCohort(folder, signal, STRENGTH, seed, model, chosen.train, baselines="[]")
                for signal, folder in folders.items()
            ]
            planned = [plan(root, store, tissue, cohort)[0] for cohort in cohorts]
            records = train(planned, executor)
            for (signal, folder), record in zip(folders.items(), records, strict=True):
                repeat = next(r for r in collect(root / "runs" / folder).models[0].repeats if r.number == seed)
                orders = sorted(repeat.test.order_sd.tolist())
                rows.append(
                    {
                        "candidate": name,
                        "signal": signal,
                        "seed": seed,
                        "auc": repeat.metrics["auc"],
                        "ece": repeat.metrics["ece"],
                        "median_order_sd": orders[len(orders) // 2],
                        "seconds": record["seconds"],
                    }
                )
                console.print(f"{name:18} {signal:12} {seed}  AUC {rows[-1]['auc']:.3f}  ECE {rows[-1]['ece']:.3f}")
                if json_path is not None:
                    files.publish_json(json_path, {"version": VERSION, "runs": rows})
    return {"version": VERSION, "runs": rows}
