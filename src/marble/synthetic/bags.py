"""Made-up bags with a planted signal, so that a claim can be tested where the truth is known.

Tokens are Gaussian noise plus one direction that says what a tile shows. A coarse tile is of kind A or B; a fine tile
shows the pattern or does not.

* `cross-scale`: a slide is positive if its pattern lies inside A regions, negative if it lies inside B regions. Both
  classes have the same number of A tiles and of pattern tiles, so neither level alone can tell them apart.
* `focal`: few A tiles among many. The pattern shows here and there by chance; in a positive slide it is frequent inside
  A. From afar one sees where to look, and not what is there.
* `burden`: the more pattern tiles, the more positive; every level sees it. The plain case.
* survival: the burden sets the hazard.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from marble.bags.augment import generator
from marble.bags.bag import Bag, Level
from marble.bags.provenance import EncoderIdentity, Provenance

Signal = Literal["cross-scale", "burden"]
#: how often the pattern shows where it means nothing, in `focal` bags
CHANCE = 0.05


@dataclass(frozen=True)
class BagRecipe:
    """Sizes of a made-up bag.

    Args:
        dim: width of the tokens.
        coarse: (least, most) coarse tiles in a slide.
        children: fine tiles in each coarse tile, of ratio * ratio places.
        ratio: how many fine tiles lie side by side in a coarse one.
        strength: length of the planted direction; the noise has standard deviation 1 in every direction.
        pattern_rate: share of the places inside the region of interest that show the pattern.
    """

    dim: int = 32
    coarse: tuple[int, int] = (12, 20)
    children: int = 8
    ratio: int = 4
    strength: float = 6.0
    pattern_rate: float = 0.5


def make_bag(slide_id: str, share: float, recipe: BagRecipe, seed: int = 0) -> Bag:
    """A two-level bag in which a fraction `share` of the pattern tiles lies inside A regions, the rest inside B.

    Half of the coarse tiles are of kind A, whatever `share` is, and the number of pattern tiles does not depend on it.
    """
    rng = generator(seed, slide_id, "synthetic")
    low, high = recipe.coarse
    half = int(torch.randint(low, high + 1, (1,), generator=rng)) // 2
    total = 2 * half
    is_a = torch.zeros(total, dtype=torch.bool)  # (T0,)
    is_a[torch.randperm(total, generator=rng)[:half]] = True
    side = int(total**0.5) + 1
    places = torch.randperm(side * side, generator=rng)[:total].sort().values
    coarse_cells = torch.stack([places // side, places % side], dim=1)  # (T0, 2)

    inside = torch.stack(
        [torch.randperm(recipe.ratio**2, generator=rng)[: recipe.children].sort().values for _ in range(total)]
    )  # (T0, children) place of each child in its parent
    parent = torch.arange(total).repeat_interleave(recipe.children)  # (T1,)
    offset = torch.stack([inside.flatten() // recipe.ratio, inside.flatten() % recipe.ratio], dim=1)
    fine_cells = coarse_cells[parent] * recipe.ratio + offset  # (T1, 2)

    patterned = max(2, round(recipe.pattern_rate * half * recipe.children))
    shows = _pattern(is_a[parent], patterned, share, rng)
    coarse = tokens_that_show(is_a, "region", recipe, rng)
    fine = tokens_that_show(shows, "pattern", recipe, rng)
    encoder = EncoderIdentity(name="synthetic", dim=recipe.dim, input_px=256)
    return Bag(
        slide_id,
        [Level(coarse, coarse_cells), Level(fine, fine_cells, parent, recipe.ratio)],
        Provenance(source="synthetic", encoders=(encoder,)),
    )


def make_focal_bag(slide_id: str, share: float, recipe: BagRecipe, seed: int = 0, regions: int = 3) -> Bag:
    """A bag twice as large as `make_bag`'s, of whose coarse tiles `regions` are of kind A, whatever `share` is.

    Inside them the pattern shows at a rate from `CHANCE` (share 0) to `recipe.pattern_rate` (share 1), elsewhere at
    `CHANCE` in every slide.
    """
    rng = generator(seed, slide_id, "synthetic-focal")
    low, high = recipe.coarse
    bag = make_bag(slide_id, share, replace(recipe, coarse=(2 * low, 2 * high)), seed)
    parent = bag.finest.parent
    assert parent is not None
    is_a = torch.zeros(len(bag.levels[0]), dtype=torch.bool)  # (T0,)
    is_a[torch.randperm(len(is_a), generator=rng)[:regions]] = True
    inside = CHANCE + share * (recipe.pattern_rate - CHANCE)
    rate = torch.where(is_a[parent], torch.tensor(inside), torch.tensor(CHANCE))
    shows = torch.rand(len(parent), generator=rng) < rate  # (T1,)
    coarse, fine = tokens_that_show(is_a, "region", recipe, rng), tokens_that_show(shows, "pattern", recipe, rng)
    levels = [Level(coarse, bag.levels[0].cells), Level(fine, bag.finest.cells, parent, recipe.ratio)]
    return Bag(slide_id, levels, bag.provenance)


def make_burden_bag(slide_id: str, burden: float, recipe: BagRecipe, seed: int = 0, exact: bool = False) -> Bag:
    """A two-level bag in which a fraction `burden` of coarse tiles is of kind A and filled with the pattern.

    Each tile is drawn for itself, so the share scatters about `burden`; `exact` takes the nearest number of tiles.
    """
    rng = generator(seed, slide_id, "synthetic-burden")
    bag = make_bag(slide_id, 0.5, recipe, seed)
    drawn = torch.rand(len(bag.levels[0]), generator=rng)  # (T0,)
    marked = drawn.argsort().argsort() < round(burden * len(drawn)) if exact else drawn < burden  # (T0,)
    parent = bag.finest.parent
    assert parent is not None
    fine = tokens_that_show(marked[parent], "pattern", recipe, rng)
    coarse = tokens_that_show(marked, "region", recipe, rng)
    levels = [Level(coarse, bag.levels[0].cells), Level(fine, bag.finest.cells, parent, recipe.ratio)]
    return Bag(slide_id, levels, bag.provenance)


def _pattern(inside: Tensor, patterned: int, share: float, rng: torch.Generator) -> Tensor:
    """(T1,) which fine tiles show the pattern: `patterned` of them, a fraction `share` of these `inside` (T1,)."""
    in_a = round(share * patterned)
    shows = torch.zeros(len(inside), dtype=torch.bool)
    for kind, count in ((True, in_a), (False, patterned - in_a)):
        candidates = (inside == kind).nonzero()[:, 0]
        shows[candidates[torch.randperm(len(candidates), generator=rng)[:count]]] = True
    return shows


def direction(name: str, dim: int) -> Tensor:
    """(D,) a fixed unit vector for a planted property, the same for every seed."""
    vector = torch.randn(dim, generator=generator("synthetic-direction", name, dim))
    return torch.nn.functional.normalize(vector, dim=0)


def tokens_that_show(shows: Tensor, name: str, recipe: BagRecipe, rng: torch.Generator) -> Tensor:
    """(T, D) noise plus the direction of `name`, with a sign that says whether the tile shows it."""
    noise = torch.randn(len(shows), recipe.dim, generator=rng)
    sign = shows.to(torch.float32)[:, None] * 2 - 1  # (T, 1)
    return noise + sign * recipe.strength / 2 * direction(name, recipe.dim)
