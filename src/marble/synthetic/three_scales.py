"""Made-up bags of three levels whose signal needs all three.

A coarse tile is of kind A or B, a middle tile of kind P or Q, a fine tile shows the pattern or does not. In a positive
slide the pattern lies where the kinds agree (P inside A, Q inside B), in a negative one where they do not (Q inside A,
P inside B). All four kinds of places, and pattern tiles, are equally many in both; the pattern is as often inside A as
inside B, and as often inside P as inside Q. So no level, and no two of them, can tell the classes apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marble.bags.augment import generator
from marble.bags.bag import Bag, Level
from marble.bags.provenance import EncoderIdentity, Provenance
from marble.synthetic.bags import BagRecipe, tokens_that_show


def make_three_scale_bag(slide_id: str, share: float, recipe: BagRecipe, seed: int = 0) -> Bag:
    """A three-level bag in which a fraction `share` of the pattern tiles lies where the kinds agree.

    A coarse tile holds four middle tiles, two of each kind; a middle tile holds `recipe.children` fine ones.
    """
    rng = generator(seed, slide_id, "three-scale")
    low, high = recipe.coarse
    total = 2 * (int(torch.randint(low, high + 1, (1,), generator=rng)) // 2)
    is_a = torch.arange(total) % 2 == 0  # (T0,)
    side = int(total**0.5) + 1
    coarse_cells = _cells(torch.randperm(side * side, generator=rng)[:total], side)

    middle_parent = torch.arange(total).repeat_interleave(4)  # (T1,)
    is_p = torch.arange(4 * total) % 2 == 0  # two of four in every coarse tile
    middle_cells = coarse_cells[middle_parent] * recipe.ratio + _inside(total, 4, recipe.ratio, rng)
    agrees = is_a[middle_parent] == is_p  # (T1,)

    fine_parent = torch.arange(4 * total).repeat_interleave(recipe.children)  # (T2,)
    fine_cells = middle_cells[fine_parent] * recipe.ratio + _inside(4 * total, recipe.children, recipe.ratio, rng)
    shows = torch.zeros(len(fine_parent), dtype=torch.bool)
    a_kind = is_a[middle_parent][fine_parent]
    quarter = max(1, round(recipe.pattern_rate * total * recipe.children / 4))  # of the pattern, in A and in B alike
    for inside_a in (True, False):
        agreeing = round(share * 2 * quarter)
        for agree, count in ((True, agreeing), (False, 2 * quarter - agreeing)):
            places = ((a_kind == inside_a) & (agrees[fine_parent] == agree)).nonzero()[:, 0]
            shows[places[torch.randperm(len(places), generator=rng)[:count]]] = True

    levels = [
        Level(tokens_that_show(is_a, "region", recipe, rng), coarse_cells),
        Level(tokens_that_show(is_p, "zone", recipe, rng), middle_cells, middle_parent, recipe.ratio),
        Level(tokens_that_show(shows, "pattern", recipe, rng), fine_cells, fine_parent, recipe.ratio),
    ]
    encoder = EncoderIdentity(name="synthetic", dim=recipe.dim, input_px=256)
    return Bag(slide_id, levels, Provenance(source="synthetic", encoders=(encoder,)))


def without_level(bag: Bag, level: int) -> Bag:
    """The bag with one of its levels left out; a tile whose parent goes is given its grandparent."""
    kept = list(bag.levels)
    gone = kept.pop(level)
    if level == 0:
        kept[0] = Level(kept[0].features, kept[0].cells)
    elif level < bag.depth - 1:
        below, above = bag.levels[level + 1], gone.parent
        assert above is not None
        assert below.parent is not None
        kept[level] = Level(below.features, below.cells, above[below.parent])
    return Bag(bag.slide_id, kept, bag.provenance)


def _cells(places: Tensor, side: int) -> Tensor:
    places = places.sort().values
    return torch.stack([places // side, places % side], dim=1)


def _inside(parents: int, children: int, ratio: int, rng: torch.Generator) -> Tensor:
    """(parents * children, 2) where each child lies in its parent."""
    drawn = [_cells(torch.randperm(ratio**2, generator=rng)[:children], ratio) for _ in range(parents)]
    return torch.cat(drawn)
