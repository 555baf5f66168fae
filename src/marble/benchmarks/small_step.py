"""What a training step of the small recipe costs beside one of the paper's, on bags as small cohorts have them.

Both steps are whole: coarse-branch drop, forward, the linear term where the recipe has one, loss, backward, clipping
and AdamW, taking turns in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from marble.bags.augment import generator
from marble.bags.bag import Bag
from marble.benchmarks.measure import interleaved
from marble.models import COMMON, BagModel, build
from marble.models.recipe import Recipe, small
from marble.models.zoo.marble import Marble
from marble.training.optim import Optimizer

TOKENS = (64, 484)  # of the fine level; with the coarse ones, all below 500 and a little over
TARGET = 10.0


def small_step(bag_of: Callable[[str, int], Bag], dim: int, repeats: int) -> list[dict[str, Any]]:
    """Per size: seconds of either step, and how many times cheaper the small one is."""
    rows: list[dict[str, Any]] = []
    for tokens in TOKENS:
        bag = bag_of("small-step", tokens)
        cases = {
            "paper": _step(build("marble", dim, 2), bag, COMMON),
            "small": _step(build("marble", dim, 2, **Marble.small_options), bag, small(240)),
        }
        seconds = interleaved(cases, repeats, warmup=3)
        times = seconds["paper"] / seconds["small"]
        rows.append({"tokens": tokens, **seconds, "times_cheaper": times, "met": times >= TARGET})
    return rows


def _step(model: BagModel, bag: Bag, recipe: Recipe) -> Callable[[], object]:
    optimizer, rng, label = Optimizer(model, recipe), generator("small-step"), torch.tensor(1)
    if recipe.linear_term:
        features = sum(level.dim for level in model.levels_read(bag))
        weight, bias = torch.zeros(model.outputs, features), torch.zeros(model.outputs)
        model.linear_term.set(weight, bias, share=1.0, like=next(model.parameters()).detach())
    model.train()

    def step() -> None:
        loss = cross_entropy(model(model.augment(bag, rng)).logits, label)
        torch.autograd.backward(loss)
        optimizer.step(recipe.lr)

    return step
