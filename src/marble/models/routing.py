"""Routed inference: decide from the coarse levels which fine tiles are worth embedding at all.

Embedding tiles is where nearly all time goes, and most of them at the finest level. A `Router` looks at what the model
makes of a coarse level and scores each tile by how much attention a fine tile below it will get. Branches are kept from
the best score down until the budget, a share of the finest tiles, is used up; the others are dropped with all their
descendants, which is the model's own coarse-branch drop, so training has covered such bags. With more than two levels
the same is done level by level, each step a fair share of the way: after step j of J, budget^(j/J) of the finest tiles
are left.

The router learns from the full model, without labels: of what a slide's prediction rests on, the share below coarse
tile i is a_i; with n_i fine tiles below it and scores s, the shares n_i exp(s_i) / sum are fitted to it by
cross-entropy. So s is the logarithm of the share per fine tile, which is what a budget in fine tiles should rank by.
What a prediction rests on is said by a `Teacher`: the attention of the fine tiles (the default, chosen by measurement:
docs/concepts/routing.md), or how far the logits move when the branch is dropped (occlusion), or the mean of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from marble.bags.augment import canonical, generator, keep_branches
from marble.bags.bag import Bag
from marble.errors import BagError, InputError
from marble.models.base import BagModel
from marble.models.inference import infer
from marble.models.orders import best_first

#: (seen) -> (T,): a score for every tile of the finest level of `seen`, which holds the coarse levels of a bag
Scorer = Callable[[Bag], Tensor]

Teacher = Literal["attention", "occlusion", "both"]
TEACHERS: tuple[Teacher, ...] = get_args(Teacher)

#: tiles of a slide and level that a router learns from at most; occlusion takes a pass of the model for each
TILES: dict[Teacher, int] = {"attention": 512, "occlusion": 64, "both": 64}
HIDDEN = 64
EPOCHS = 40
RATE = 2e-3


class Router(nn.Module):
    """A small head per level but the finest, on what a model makes of that level's tiles.

    Args:
        width: of the tokens that the model's `coarse_tokens` gives.
        levels: of the bags.
    """

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        if levels < 2:
            raise InputError(f"routing chooses fine tiles from coarse ones; bags of {levels} level have none")
        self.width, self.levels = width, levels
        self.heads = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1))
            for _ in range(levels - 1)
        )

    def forward(self, tokens: Tensor, level: int) -> Tensor:
        """(T,) scores of the tiles of `level`: the logarithm of attention per fine tile below, up to a constant."""
        scores: Tensor = self.heads[level](tokens)[:, 0]
        return scores

    def scorer(self, model: BagModel) -> Scorer:
        """This router as a function of the levels seen so far."""

        @torch.no_grad()
        def scores(seen: Bag) -> Tensor:
            tokens = model.coarse_tokens(seen)
            found: Tensor = self(tokens, seen.depth - 1)
            return found

        return scores


def routed(bag: Bag, budget: float, scorer: Scorer) -> Bag:
    """The bag with the branches that `scorer` ranks best; itself if the budget is 1.

    Args:
        bag: in any stored order; the result is in order of cells.
        budget: share of the finest tiles to keep; at least one branch always stays.
        scorer: sees level 0 alone, then levels 0 and 1 of what is left, and so on.
    """
    check_budget(budget)
    if budget == 1:
        return bag
    bag = canonical(bag)
    total = len(bag.finest)
    for k in range(bag.depth - 1):
        seen = bag.with_levels(bag.levels[: k + 1])
        keep = keep_best(scorer(seen), descendants(bag, k), allowance(budget, total, k, bag.depth))
        bag = keep_branches(bag, keep, k)
    return bag


def keep_best(scores: Tensor, below: Tensor, most: int) -> Tensor:
    """(T,) true for the best tiles, in order of their scores, as long as no more than `most` finest tiles are below.

    The best one that has any stays whatever the limit: a bag needs a tile. Equal scores go by the order given.
    """
    order = best_first(scores)
    running = torch.cumsum(below[order], dim=0)  # (T,) finest tiles below the best ones
    needed = int((running == 0).sum()) + 1
    count = max(needed, int((running <= most).sum()))
    keep = torch.zeros(len(scores), dtype=torch.bool)
    keep[order[:count]] = True
    return keep


def allowance(budget: float, total: int, level: int, depth: int) -> int:
    """How many of `total` finest tiles may be left after the choice at `level`."""
    share: float = budget ** ((level + 1) / (depth - 1))
    return math.floor(share * total * (1 + 1e-12))


def descendants(bag: Bag, level: int) -> Tensor:
    """(T_level,) how many finest tiles lie below each tile."""
    return torch.bincount(bag.ancestors(level), minlength=len(bag.levels[level]))


def check_budget(budget: float) -> None:
    """Refuse what is no share of the tiles."""
    if not 0 < budget <= 1:
        raise InputError(f"budget must be more than 0 and at most 1, got {budget:g}", hint="0.25 embeds a quarter")


# ---- other choices, to compare with ----------------------------------------------------------------------------------


def random_scorer(seed: int = 0) -> Scorer:
    """Branches by chance: the same ones for the same slide and seed."""

    def scores(seen: Bag) -> Tensor:
        rng = generator(seed, seen.slide_id, seen.depth, "random-routing")
        return torch.rand(len(seen.finest), generator=rng)

    return scores


def oracle_scorer(model: BagModel, bag: Bag, orders: int) -> Scorer:
    """Branches by the attention that the full model gives their fine tiles: what no choice from afar can know."""
    bag = canonical(bag)
    attention = _attention(model, bag, orders)
    known = {}
    for k in range(bag.depth - 1):
        density = _mass(bag, attention, k) / descendants(bag, k).clamp_min(1)
        cells = bag.levels[k].cells.tolist()
        known[k] = {tuple(cell): float(value) for cell, value in zip(cells, density, strict=True)}

    def scores(seen: Bag) -> Tensor:
        of_level = known[seen.depth - 1]
        return torch.tensor([of_level[tuple(cell)] for cell in seen.finest.cells.tolist()])

    return scores


# ---- learning -------------------------------------------------------------------------------------------------------


def distil(model: BagModel, bags: Iterable[Bag], orders: int, seed: int = 0, teacher: Teacher = "attention") -> Router:
    """A router that says, from coarse levels, where the model will look. No label is used.

    Args:
        model: the trained model, in evaluation mode.
        bags: of training slides; each is read once.
        orders: of the model's predictions.
        seed: of the heads' first weights and of the order of slides.
        teacher: what says where the model looks.
    """
    lessons: list[list[tuple[Tensor, Tensor, Tensor]]] = []  # [slide][level]: tokens, share of attention, log count
    for bag in map(canonical, bags):
        if bag.depth < 2:
            hint = "Make bags of two or more magnifications"
            raise BagError("a bag of one level has no coarser one to choose tiles from", where=bag.slide_id, hint=hint)
        attention = _attention(model, bag, orders)
        lessons.append([_lesson(model, bag, attention, k, orders, teacher) for k in range(bag.depth - 1)])
    if not lessons:
        raise InputError("no slide to learn routing from")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "router").initial_seed() % 2**63)
        router = Router(lessons[0][0][0].shape[1], len(lessons[0]) + 1)
    optimizer = torch.optim.AdamW(router.parameters(), lr=RATE, weight_decay=0.01)
    steps = EPOCHS * len(lessons)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    for epoch in range(EPOCHS):
        for slide in torch.randperm(len(lessons), generator=generator(seed, epoch, "router-order")).tolist():
            loss = torch.zeros(())
            for level, (tokens, share, log_count) in enumerate(lessons[slide]):
                said = torch.log_softmax(router(tokens.float(), level) + log_count, dim=0)
                loss = loss - (share * said).sum()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    return router.eval()


def _lesson(
    model: BagModel, bag: Bag, attention: Tensor, level: int, orders: int, teacher: Teacher
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (n, D), share of each in what the prediction rests on (n,), log of the finest tiles below each (n,)."""
    seen = bag.with_levels(bag.levels[: level + 1])
    count = descendants(bag, level)
    tiles = (count > 0).nonzero()[:, 0]
    if len(tiles) > TILES[teacher]:
        tiles = tiles[torch.randperm(len(tiles), generator=generator(bag.slide_id, level, "lesson"))[: TILES[teacher]]]
    with torch.no_grad():
        tokens = model.coarse_tokens(seen)[tiles]
    shares = []
    if teacher != "occlusion":
        shares.append(_share(_mass(bag, attention, level)[tiles]))
    if teacher != "attention":
        shares.append(_share(_moved(model, bag, level, tiles, orders)))
    return tokens.half(), torch.stack(shares).mean(dim=0).float(), count[tiles].float().log()


def _share(mass: Tensor) -> Tensor:
    return mass / mass.sum() if float(mass.sum()) > 0 else torch.full_like(mass, 1 / len(mass))


def _moved(model: BagModel, bag: Bag, level: int, tiles: Tensor, orders: int) -> Tensor:
    """(n,) how far the logits move when each of `tiles` is dropped with all below it; the last one cannot be."""
    whole = infer(model, bag, orders).logits.double()
    moved = torch.zeros(len(tiles), dtype=torch.float64)
    for place, tile in enumerate(tiles.tolist()):
        keep = torch.ones(len(bag.levels[level]), dtype=torch.bool)
        keep[tile] = False
        if int(descendants(bag, level)[keep].sum()) > 0:
            change = infer(model, keep_branches(bag, keep, level), orders).logits.double() - whole
            if len(change) > 1:  # what all classes gain alike changes nothing
                change = change - change.mean()
            moved[place] = float(change.norm())
    return moved


def _attention(model: BagModel, bag: Bag, orders: int) -> Tensor:
    """(T_finest,) of a canonical bag."""
    found = infer(model, bag, orders)
    if found.level != bag.depth - 1:
        raise InputError(
            f"the model reads level {found.level} of {bag.depth}: there are no finer tiles to choose",
            where=bag.slide_id,
        )
    return found.attention.double()


def _mass(bag: Bag, attention: Tensor, level: int) -> Tensor:
    """(T_level,) the attention that each tile's finest descendants get together."""
    return torch.zeros(len(bag.levels[level]), dtype=torch.float64).index_add(0, bag.ancestors(level), attention)
