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
from marble.benchmarks.learning import plan, tissue_of
from marble.reports.collect import collect
from marble.synthetic.composed import Signal, Strength
from marble.training.run import execute
from marble.version import VERSION

SEEDS = (100, 101)
SIGNALS: tuple[Signal, ...] = ("cross-scale", "fine-only", "coarse-only")
STRENGTH: Strength = "middle"


@dataclass(frozen=True)
class Candidate:
    """One way to train MARBLE: its options and settings that are not the recipe's, as the experiment file has them."""

    model: str = ""
    train: str = ""


#: the mlp mixer stands in for the scan: it takes half the time and learned the same signals as well
STAND_IN = 'mixer = "mlp"'
CANDIDATES: dict[str, Candidate] = {
    "base": Candidate(STAND_IN),
    "lr 1e-3": Candidate(STAND_IN, "lr = 1e-3"),
    "readout all": Candidate(STAND_IN + ', readout = "all"'),
    "both": Candidate(STAND_IN + ', readout = "all"', "lr = 1e-3"),
    "start default": Candidate(STAND_IN + ', start = "default"'),
    "not standardised": Candidate(STAND_IN, "standardise = false"),
    "twice the steps": Candidate(STAND_IN, "epochs = 20"),
    "dropout 0": Candidate(STAND_IN + ", dropout = 0.0"),
    "ema 0.99": Candidate(STAND_IN, "ema = 0.99"),
    "least loss": Candidate(STAND_IN, 'select_by = "loss"'),
    "block literal": Candidate(STAND_IN + ', block = "literal"'),
    "width 128": Candidate(STAND_IN + ", project = 128"),
    "lr 1e-4": Candidate(STAND_IN, "lr = 1e-4"),
    "mixer mamba2": Candidate(),
    "mamba2, start default": Candidate('start = "default"'),
    "mamba2, start default, lr 1e-3": Candidate('start = "default"', "lr = 1e-3"),
    "mamba2, readout all, lr 1e-3": Candidate('readout = "all"', "lr = 1e-3"),
    "mixer set": Candidate('mixer = "set"'),
    "set, start default": Candidate('mixer = "set", start = "default"'),
    "set, start default, lr 1e-3": Candidate('mixer = "set", start = "default"', "lr = 1e-3"),
}


def run(
    json_path: str | Path | None = None,
    quick: bool = False,
    data: str | Path | None = None,
    out: str | Path | None = None,
    candidates: Sequence[str] = tuple(CANDIDATES),
    signals: Sequence[Signal] = SIGNALS,
    seeds: Sequence[int] = SEEDS,
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
            for signal in signals:
                chosen = CANDIDATES[name]
                model = f'[{{ name = "marble"{chosen.model and ", " + chosen.model} }}]'
                folder = f"{name}-{signal}".replace(" ", "-")
                for planned in plan(
                    root, folder, store, tissue, signal, STRENGTH, seed, model, chosen.train, baselines="[]"
                ):
                    record = execute(planned)
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
