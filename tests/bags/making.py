"""Small valid bags for tests."""

from __future__ import annotations

import torch

from marble.bags.augment import generator
from marble.bags.bag import Bag, Level


def random_bag(
    slide_id: str = "s",
    coarse: int = 5,
    ratios: tuple[int, ...] = (4,),
    dim: int = 8,
    dtype: torch.dtype = torch.float32,
) -> Bag:
    """A bag with 1 + len(ratios) levels in scrambled order; some coarse tiles may have no child."""
    rng = generator("random-bag", slide_id, coarse, ratios)

    def features(count: int) -> torch.Tensor:
        return torch.randn(count, dim, generator=rng).to(dtype)

    cells = torch.randperm(64, generator=rng)[:coarse]
    cells = torch.stack([cells // 8, cells % 8], dim=1)
    levels = [Level(features(coarse), cells)]
    for ratio in ratios:
        above = len(levels[-1])
        every = torch.cartesian_prod(torch.arange(above), torch.arange(ratio), torch.arange(ratio))
        chosen = every[torch.randperm(len(every), generator=rng)[: max(1, 2 * len(every) // 3)]]
        cells = levels[-1].cells[chosen[:, 0]] * ratio + chosen[:, 1:]
        levels.append(Level(features(len(chosen)), cells, parent=chosen[:, 0]))
    return Bag(slide_id, levels)
