"""Made-up cohorts: bags in a store and the table that says what each patient's target is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch

from marble import files
from marble.bags.augment import generator
from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.specs import canonical_json
from marble.synthetic.bags import BagRecipe, make_bag, make_burden_bag, make_focal_bag
from marble.synthetic.neighbours import make_neighbour_bag
from marble.synthetic.three_scales import make_three_scale_bag

Kind = Literal["cross-scale", "three-scale", "focal", "neighbours", "burden", "quantity", "survival", "noise"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COLUMNS = {"survival": "time,event", "quantity": "target"}


def write_cohort(
    folder: str | Path,
    kind: Kind = "cross-scale",
    patients: int = 60,
    recipe: BagRecipe | None = None,
    seed: int = 0,
    two_slides: float = 0.2,
) -> tuple[Path, BagStore]:
    """Write `folder/cohort.csv` and `folder/bags/`; return both. A bag that is there and made in this way is kept.

    Args:
        folder: where to write.
        kind: the planted signal (see `synthetic.bags`, `synthetic.three_scales`, `synthetic.neighbours`); `quantity` is
            a number that grows with the burden; `noise` plants none, so nothing can be learned honestly.
        patients: how many; half of them positive, or with hazards spread evenly.
        recipe: sizes of the bags.
        seed: another seed is another cohort.
        two_slides: share of patients with a second slide.
    """
    root = Path(folder)
    recipe = recipe or BagRecipe()
    store = BagStore(root / "bags")
    rows = [f"case_id,slide_id,{COLUMNS.get(kind, 'label')}"]
    for index in range(patients):
        case_id = f"P{index:04d}"
        rng = generator(seed, case_id, kind)
        severity = index / max(patients - 1, 1) if kind in COLUMNS else index % 2
        target = _target(kind, severity, rng)
        slides = 2 if torch.rand((), generator=rng) < two_slides else 1
        for number in range(slides):
            slide_id = f"{case_id}-S{number}"
            rows.append(f"{case_id},{slide_id},{target}")
            made_of = {"kind": kind, "severity": severity, "recipe": asdict(recipe), "seed": seed}
            keep_or_make(store, slide_id, made_of, partial(_bag, slide_id, kind, severity, recipe, seed))
    table = root / "cohort.csv"
    files.publish(table, "\n".join(rows) + "\n")
    return table, store


def keep_or_make(store: BagStore, slide_id: str, made_of: object, make: Callable[[], Bag]) -> None:
    """Make a bag and save it, unless there is one that does not say it was made of something else.

    Under the label of another cohort a bag would teach what is not so.
    """
    ours = files.sha256_bytes(canonical_json(made_of))
    if slide_id not in store or store.record(slide_id).details.get("made_of", ours) != ours:
        store.save(make(), {"made_of": ours})


def _bag(slide_id: str, kind: Kind, severity: float, recipe: BagRecipe, seed: int) -> Bag:
    if kind in ("burden", "quantity", "survival"):
        low, high = (0.1, 0.5) if kind == "burden" else (0.05, 0.95)
        return make_burden_bag(slide_id, low + (high - low) * severity, recipe, seed, exact=kind == "quantity")
    if kind == "focal":
        return make_focal_bag(slide_id, severity, recipe, seed)
    if kind == "neighbours":
        return make_neighbour_bag(slide_id, severity, recipe, seed)
    if kind == "three-scale":
        return make_three_scale_bag(slide_id, severity, recipe, seed)
    return make_bag(slide_id, 0.5 if kind == "noise" else severity, recipe, seed)


def _target(kind: Kind, severity: float, rng: torch.Generator) -> str:
    if kind == "survival":
        return survival_outcome(severity, rng)
    if kind == "quantity":
        return f"{20 + 60 * severity:.4f}"  # in a unit of its own, far from 0 and 1
    return ("negative", "positive")[int(severity)]


def survival_outcome(severity: float, rng: torch.Generator) -> str:
    """Weibull time (shape 2) whose scale falls a hundredfold from severity 0 to 1, about a third censored at random."""
    uniform = torch.rand(2, generator=rng).clamp_min(1e-6)
    scale = 100.0 ** (0.5 - severity)
    time = float((-uniform[0].log()).sqrt()) * scale
    censored = float((-uniform[1].log()).sqrt()) * 1.4 * scale
    return f"{min(time, censored):.4f},{int(time <= censored)}"
