"""`marble bench recipe`: the search behind `recipe = "small"`, on development cohorts composed of real tissue.

Every candidate differs in one thing from `base`, which is the recipe as it stands but for the share: all of a network
is judged, because a share of 0 hides what the network learned, and choosing it takes three more fits. The recipe with
its share, and the probe, stand beside them. The plan, and what came of it, is in docs/decisions/small-cohorts.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import Any

from rich.console import Console

from marble import files
from marble.benchmarks.learning import ComposedCohort, plan, tissue_of, train
from marble.compute import Executor
from marble.models.recipe import small
from marble.reports.collect import collect
from marble.synthetic.composed import Signal, Strength
from marble.tasks.metric import Metric, Undefined
from marble.version import VERSION

SEEDS = (100, 101, 102, 103, 104)
SIGNALS: tuple[Signal, ...] = ("cross-scale", "fine-only", "coarse-only")
STRENGTH: Strength = "middle"
#: training bags: what most small cohorts have, and near the end of what counts as small
SIZES = (48, 240)


@dataclass(frozen=True)
class Candidate:
    """One way to train: options and settings that are not the recipe's, as the experiment file has them."""

    options: str = ""
    train: str = ""
    longer: float = 1.0  # times the recipe's epochs
    model: str = "marble"
    share: bool = False  # as the recipe has it; without, a prediction takes all of the network


CANDIDATES: dict[str, Candidate] = {
    "base": Candidate(),
    "probe": Candidate(model="probe"),
    "with its share": Candidate(share=True),
    "no linear term": Candidate(train="linear_term = false"),
    "four times the steps": Candidate(longer=4),
    "no linear term, four times the steps": Candidate(train="linear_term = false", longer=4),
    "readout all": Candidate('readout = "all"'),
    "dropout 0.5": Candidate("dropout = 0.5"),
    "noise 0.5": Candidate("noise = 0.5"),
    "noise 1": Candidate("noise = 1.0"),
    "four networks": Candidate(train="members = 4"),
    "four networks with their share": Candidate(train="members = 4", share=True),
    "start fine": Candidate('start = "fine"'),
    "lr 1e-3": Candidate(train="lr = 1e-3"),
    "lr 1e-4": Candidate(train="lr = 1e-4"),
    "half the steps": Candidate(longer=0.5),
    "start default": Candidate('start = "default"'),
    "dropout 0": Candidate("dropout = 0.0"),
    "width 128": Candidate("project = 128"),
    "ema 0.99": Candidate(train="ema = 0.99"),
    "least loss": Candidate(train='select_by = "loss"'),
    "best metric": Candidate(train='select_by = "metric"'),
    "classes drawn evenly": Candidate(train='sampling = "weighted"'),
    "block literal": Candidate('block = "literal"'),
    "not standardised": Candidate(train="standardise = false"),
    "mixer mlp": Candidate('mixer = "mlp"'),
    "mixer mamba2": Candidate('mixer = "mamba2"'),
}


@dataclass(frozen=True)
class Tried:
    """What one candidate scored on one cohort."""

    candidate: str
    signal: Signal
    bags: int
    seed: int
    auc: float
    ece: float
    median_order_sd: float
    seconds: float


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
    """Train every candidate on every development cohort, and write `recipe.md`; `quick` takes three and one seed."""
    if quick:
        candidates, seeds = candidates[:3], seeds[:1]
    store, tissue = tissue_of(data)
    root = Path(out or "bench-recipe")
    console = Console()
    tried: list[Tried] = []
    for seed in seeds:
        for name in candidates:
            cohorts = [_cohort(name, signal, bags, seed) for bags in SIZES for signal in signals]
            records = train([plan(root, store, tissue, cohort)[0] for cohort in cohorts], executor)
            sizes = [bags for bags in SIZES for _ in signals]
            for cohort, bags, record in zip(cohorts, sizes, records, strict=True):
                one = _result(root, name, cohort, bags, record)
                tried.append(one)
                console.print(f"{name:36} {one.signal:12} {one.bags:3} {seed}  AUC {one.auc:.3f}  ECE {one.ece:.3f}")
            if json_path is not None:
                files.publish_json(json_path, {"version": VERSION, "runs": [asdict(one) for one in tried]})
        files.publish(root / "recipe.md", markdown(tried))  # of whole seeds: a stopped search has a table
    return {"version": VERSION, "runs": [asdict(one) for one in tried]}


def _cohort(name: str, signal: Signal, bags: int, seed: int) -> ComposedCohort:
    chosen = CANDIDATES[name]
    model = f'[{{ name = "{chosen.model}"{chosen.options and ", " + chosen.options} }}]'
    settings = [chosen.train] if chosen.train else []
    if chosen.model == "marble" and not chosen.share:
        settings.append("share_folds = 0")
    if chosen.longer != 1:
        settings.append(f"epochs = {max(1, round(small(bags).epochs * chosen.longer))}")
    folder = f"{name}-{signal}-{bags}".replace(" ", "-")
    return ComposedCohort(folder, signal, STRENGTH, seed, model, ", ".join(settings), baselines="[]", bags=bags)


def _result(root: Path, name: str, cohort: ComposedCohort, bags: int, record: dict[str, Any]) -> Tried:
    repeats = collect(root / "runs" / cohort.name).models[0].repeats
    repeat = next(r for r in repeats if r.number == cohort.seed)
    orders = sorted(repeat.test.order_sd.tolist())
    return Tried(
        candidate=name,
        signal=cohort.signal,
        bags=bags,
        seed=cohort.seed,
        auc=_defined(repeat.metrics["auc"]),
        ece=_defined(repeat.metrics["ece"]),
        median_order_sd=orders[len(orders) // 2],
        seconds=record["seconds"],
    )


def _defined(metric: Metric) -> float:
    assert not isinstance(metric, Undefined)  # test bags are of both classes
    return metric


def markdown(tried: Sequence[Tried]) -> str:
    """A row per candidate: its mean AUC on every kind of cohort, and its mean paired difference to the first.

    The difference is taken on the same bags of the same seed; its standard error is that of the seeds' means.
    """
    kinds = list(dict.fromkeys((one.signal, one.bags) for one in tried))
    names = list(dict.fromkeys(one.candidate for one in tried))
    base = {(one.signal, one.bags, one.seed): one.auc for one in tried if one.candidate == names[0]}
    head = ["candidate", *(f"{signal}, {bags} bags" for signal, bags in kinds), f"less {names[0]}: mean, least", "ECE"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name in names:
        mine = [one for one in tried if one.candidate == name]
        means = [f"{_mean([one.auc for one in mine if (one.signal, one.bags) == kind]):.3f}" for kind in kinds]
        apart: dict[int, list[float]] = {}
        for one in mine:
            apart.setdefault(one.seed, []).append(one.auc - base[one.signal, one.bags, one.seed])
        said = "" if name == names[0] else _difference(list(apart.values()))
        lines.append(_line([name, *means, said, f"{_mean([one.ece for one in mine]):.2f}"]))
    seeds = sorted({one.seed for one in tried})
    return "\n".join([*lines, "", f"Seeds {', '.join(map(str, seeds))}; 120 test bags each."]) + "\n"


def _difference(by_seed: Sequence[Sequence[float]]) -> str:
    """Mean over seeds and cohorts with its standard error over seeds, where there are several, and the least of all."""
    means = [_mean(one) for one in by_seed]
    error = f" ± {stdev(means) / sqrt(len(means)):.3f}" if len(means) > 1 else ""
    return f"{_mean(means):+.3f}{error}, {min(min(one) for one in by_seed):+.3f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
