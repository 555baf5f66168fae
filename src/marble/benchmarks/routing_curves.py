"""Accuracy against the share of fine tiles that are embedded: what a run says with fewer and fewer of them, and AUC.

Every test slide is asked about at every budget, its fine tiles chosen

    routed    by the router, from the coarse levels
    random    by chance
    oracle    by the attention of the full model, which nobody has who has not embedded everything

Intervals are by bootstrap over seeds and, within each, over patients; the same draw for whole and routed, so that the
difference is a paired one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marble import files
from marble.bags.bag import Bag
from marble.benchmarks.routing_cohorts import Trained
from marble.models.inference import infer
from marble.models.routing import Scorer, Teacher, distil, oracle_scorer, random_scorer, routed
from marble.tasks import weighted

Floats = npt.NDArray[np.float64]
BUDGETS = (0.05, 0.1, 0.25, 0.5, 1.0)
CHOICES = ("routed", "random", "oracle")
DRAWS = 2000


@dataclass(frozen=True)
class Curve:
    """What one run said about its test slides.

    Args:
        said: choice -> budget (as text) -> how far each slide speaks for the second class.
        shares: choice -> budget -> share of all fine tiles that were looked at.
    """

    seed: int
    positive: list[bool]
    groups: list[str]
    said: dict[str, dict[str, list[float]]]
    shares: dict[str, dict[str, float]]


def curve(
    one: Trained,
    seed: int,
    cache: Path | None = None,
    teacher: Teacher = "attention",
    budgets: Sequence[float] = BUDGETS,
) -> Curve:
    """Every choice at every budget; kept in `cache`, and taken from there while run and router are the same."""
    known = {"run": one.run.record["seal"], "teacher": teacher, "budgets": list(budgets), "seed": seed}
    if cache is not None and cache.exists():
        stored = files.read_json(cache, dict)
        if stored["known"] == known:
            return Curve(**stored["curve"])
    model, orders = one.run.model(), int(one.run.record["orders"])
    router = distil(model, (one.store.load(slide) for slide in one.training_slides), orders, seed, teacher)
    choices: dict[str, Callable[[Bag], Scorer]] = {
        "routed": lambda _bag: router.scorer(model),
        "random": lambda _bag: random_scorer(seed),
        "oracle": lambda bag: oracle_scorer(model, bag, orders),
    }
    said: dict[str, dict[str, list[float]]] = {choice: {f"{b:g}": [] for b in budgets} for choice in choices}
    used = {choice: dict.fromkeys(said[choice], 0) for choice in choices}
    there = 0
    for slide in one.slides:
        bag = one.store.load(slide)
        there += len(bag.finest)
        whole = _margin(infer(model, bag, orders).logits.tolist())
        for choice, scorer in choices.items():
            for budget in budgets:
                rest = bag if budget == 1 else routed(bag, budget, scorer(bag))
                margin = whole if budget == 1 else _margin(infer(model, rest, orders).logits.tolist())
                said[choice][f"{budget:g}"].append(margin)
                used[choice][f"{budget:g}"] += len(rest.finest)
    shares = {choice: {b: count / there for b, count in of.items()} for choice, of in used.items()}
    found = Curve(seed, list(one.positive), list(one.groups), said, shares)
    if cache is not None:
        files.publish_json(cache, {"known": known, "curve": asdict(found)})
    return found


def _margin(logits: list[float]) -> float:
    return logits[1] - logits[0]


# ---- what the curves of several seeds come to -----------------------------------------------------------------------


def points(curves: Sequence[Curve], seed: int = 0) -> list[dict[str, Any]]:
    """Mean AUC of every choice and budget with its interval, and the paired difference to looking at everything."""
    rng = np.random.default_rng(seed)
    weights = [_draws(one, rng) for one in curves]  # [seed] (DRAWS + 1, slides), the first draw is the data as it is
    picked = np.vstack([np.arange(len(curves)), rng.integers(len(curves), size=(DRAWS, len(curves)))])
    found = []
    areas: dict[tuple[str, str], Floats] = {}
    for choice in CHOICES:
        for budget in curves[0].said[choice]:
            of_seed = np.stack(
                [weighted.auc(np.array(one.positive), np.array(one.said[choice][budget]), w)
                 for one, w in zip(curves, weights, strict=True)], axis=1,
            )  # (DRAWS + 1, seeds)  # fmt: skip
            areas[choice, budget] = _mean(np.take_along_axis(of_seed, picked, axis=1))
    for (choice, budget), area in areas.items():
        loss = area - areas[choice, "1"]
        found.append(
            {
                "choice": choice,
                "budget": float(budget),
                "share": float(np.mean([one.shares[choice][budget] for one in curves])),
                "auc": float(area[0]),
                "interval": _interval(area[1:]),
                "difference": float(loss[0]),
                "difference_interval": _interval(loss[1:]),
            }
        )
    return found


def _draws(one: Curve, rng: np.random.Generator) -> Floats:
    """(DRAWS + 1, slides) how often each slide counts: patients are drawn, with all their slides."""
    names = sorted(set(one.groups))
    of_group = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS).astype(np.float64)
    place = np.array([names.index(name) for name in one.groups])
    return np.vstack([np.ones(len(place)), of_group[:, place]])


def _mean(areas: Floats) -> Floats:
    """(draws,) over the seeds that have an area: a fold of few patients may be drawn without one of the classes."""
    known = ~np.isnan(areas)
    mean: Floats = np.where(known, areas, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    mean[~known.any(axis=1)] = np.nan
    return mean


def _interval(draws: Floats) -> tuple[float, float]:
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return float(low), float(high)
