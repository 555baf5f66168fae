"""What may be done to a bag without changing what it is: orders, and dropping whole branches.

Randomness is stateless: every draw comes from a generator made from (seed, epoch, slide, purpose), so a resumed run, a
run with other workers and a run in another order see the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from marble.bags.bag import Bag, Level, cell_keys
from marble.devices import to_device
from marble.errors import InputError


def generator(*key: object) -> torch.Generator:
    """A CPU generator seeded by the hash of `key`, for example (seed, epoch, slide_id, "drop")."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def canonical(bag: Bag) -> Bag:
    """Every level sorted by cell, row-major: the same bag whatever order it was stored in; itself if it is sorted."""
    keys = [cell_keys(level.cells) for level in bag.levels]
    if all(bool((key[1:] > key[:-1]).all()) for key in keys):
        return bag
    return reorder(bag, [torch.argsort(key) for key in keys])


def shuffled(bag: Bag, rng: torch.Generator) -> Bag:
    """Every level in a random order; parents follow."""
    return reorder(bag, random_orders(bag, rng))


def random_orders(bag: Bag, rng: torch.Generator) -> list[Tensor]:
    """A random order for each level: the same numbers on every device, and there where the bag is."""
    return [to_device(torch.randperm(len(level), generator=rng), bag.device) for level in bag.levels]


def reorder(bag: Bag, orders: list[Tensor]) -> Bag:
    """Put token `orders[k][i]` of level k at place i, and relabel the parents."""
    levels: list[Level] = []
    for k, (level, order) in enumerate(zip(bag.levels, orders, strict=True)):
        parent = None
        if level.parent is not None:
            place = torch.empty_like(orders[k - 1])  # where each coarse tile went
            place[orders[k - 1]] = torch.arange(len(place), device=place.device)
            parent = place[level.parent[order]]
        levels.append(level.take(order, parent))
    return bag.with_levels(levels)


def keep_branches(bag: Bag, keep: Tensor, level: int = 0) -> Bag:
    """Keep the tiles of `level` where `keep` (T_level,) is true, with all their descendants; the rest goes.

    Ancestors above `level` stay. Raises if a level would be left without a tile.
    """
    levels = list(bag.levels[:level])
    for k in range(level, bag.depth):
        current = bag.levels[k]
        parent = current.parent
        if k > level:
            assert parent is not None
            new_place = torch.cumsum(keep, 0) - 1
            mine = keep[parent]  # (T_k,) a tile stays if its parent stays
            parent, keep = new_place[parent[mine]], mine
        elif parent is not None:
            parent = parent[keep]
        if not bool(keep.any()):
            raise InputError(f"level {k} would be left without a tile", where=bag.slide_id)
        levels.append(current.take(keep.nonzero()[:, 0], parent))
    return bag.with_levels(levels)


def noised(bag: Bag, sds: Sequence[Tensor], rng: torch.Generator) -> Bag:
    """Every token with independent Gaussian noise added, of its level's `sds`: (D,), or () for all features alike."""
    levels: list[Level] = []
    for level, sd in zip(bag.levels, sds, strict=True):
        noise = to_device(torch.randn(level.features.shape, generator=rng), bag.device)
        levels.append(replace(level, features=level.features + (noise * sd).to(level.features.dtype)))
    return bag.with_levels(levels)


def drop_coarse(bag: Bag, rate: float, rng: torch.Generator) -> Bag:
    """Drop a fraction `rate` of level-0 tiles with all their descendants (the paper's coarse-branch drop).

    The count is rate * T0, rounded up or down at random so that its mean is exact for small bags too. At least one
    finest tile always survives: if the draw would leave none, the bag is returned as it is.
    """
    if not 0 <= rate < 1:
        raise InputError(f"drop_rate must be in [0, 1), got {rate}")
    total = len(bag.levels[0])
    exact = rate * total
    count = int(exact) + int(torch.rand((), generator=rng).item() < exact - int(exact))
    count = min(count, total - 1)
    if count == 0:
        return bag
    keep = torch.ones(total, dtype=torch.bool)
    keep[torch.randperm(total, generator=rng)[:count]] = False
    keep = to_device(keep, bag.device)
    if not bool(keep[bag.ancestors(0)].any()):
        return bag
    return keep_branches(bag, keep)
