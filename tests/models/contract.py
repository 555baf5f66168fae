"""Bags, models and losses for the contract test: small enough that every model takes moments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from marble.bags.bag import Bag, Level
from marble.models import build, model_options
from marble.models.base import BagModel, Output

DIM = 32
RATIO = 2
#: models whose cost is set by their width, not by the bag: Nystrom attention always works on width / 2 landmarks
SMALL: dict[str, dict[str, Any]] = {
    "transmil": {"hidden": 64},
    "hagmil": {"widths": (32, 48, 16, 32), "attention_dims": (16, 8)},
}


def make_bag(
    tokens: int, levels: int, seed: int = 0, dim: int = DIM, dtype: torch.dtype = torch.float32, slide_id: str = "s-1"
) -> Bag:
    """A bag with `tokens` tiles at its finest level, drawn from a square; coarser levels hold exactly their parents."""
    rng = torch.Generator().manual_seed(seed)
    side = 1
    while side * side < 2 * tokens:
        side += 1
    picked = torch.randperm(side * side, generator=rng)[:tokens]
    cells = [torch.stack([picked // side, picked % side], dim=1)]
    parents: list[Tensor | None] = []
    for _ in range(levels - 1):
        above, parent = torch.unique(cells[-1] // RATIO, dim=0, return_inverse=True)
        cells.append(above)
        parents.append(parent)
    parents.append(None)
    finest_first = [
        Level(torch.randn(len(place), dim, generator=rng).to(dtype), place, parent, None if parent is None else RATIO)
        for place, parent in zip(cells, parents, strict=True)
    ]
    return Bag(slide_id, finest_first[::-1])


def make_model(name: str, levels: int = 2, outputs: int = 2, seed: int = 0, **options: Any) -> BagModel:
    """The model with its default options or smaller; one that is built for a number of levels is told it."""
    torch.manual_seed(seed)
    options = {**SMALL.get(name, {}), **options}
    if "levels" in model_options(name):
        options["levels"] = levels
    return build(name, DIM, outputs, **options)


@cache
def evaluated(name: str, levels: int, outputs: int = 2) -> BagModel:
    """One model in evaluation mode, shared by all tests that leave it as it is."""
    return make_model(name, levels, outputs).eval()


def classification_loss(model: BagModel, bags: Sequence[Bag]) -> Tensor:
    """Mean loss over bags whose labels go round the classes: main output, sides and the model's own."""
    total = torch.zeros(())
    for i, bag in enumerate(bags):
        label = i % model.outputs
        out = model(bag)
        target = torch.tensor([label])
        total = total + out.logits_weight * functional.cross_entropy(out.logits[None], target)
        for side in out.side:
            total = total + side.weight * functional.cross_entropy(side.logits[None], target)
        extra = model.extra_loss(out, label)
        total = total if extra is None else total + extra
    return total / len(bags)


def survival_loss(model: BagModel, bags: Sequence[Bag]) -> Tensor:
    """Cox loss of all bags, event times in their order and every second one censored; sides included."""
    outputs = [model(bag) for bag in bags]
    total = outputs[0].logits_weight * cox([out.logits for out in outputs])
    for k, side in enumerate(outputs[0].side):
        total = total + side.weight * cox([out.side[k].logits for out in outputs])
    return total


def cox(risks: Sequence[Tensor]) -> Tensor:
    """Mean over the events i = 0, 2, 4... of log(sum over j >= i of exp(risk j)) - risk i."""
    r = torch.cat(list(risks))
    at_risk = torch.logcumsumexp(r.flip(0), dim=0).flip(0)  # (n,)
    return (at_risk - r)[::2].mean()


def same(a: Output, b: Output) -> bool:
    """Whether two outputs are bitwise the same prediction."""
    return (
        torch.equal(a.logits, b.logits)
        and torch.equal(a.attention, b.attention)
        and torch.equal(a.embedding, b.embedding)
        and a.level == b.level
    )
