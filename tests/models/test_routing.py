"""Routing keeps whole branches, the best ones, within the budget; and it learns where a model looks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from marble.bags.augment import canonical, generator, keep_branches, shuffled
from marble.bags.bag import Bag
from marble.errors import BagError, InputError
from marble.models import build, routing
from marble.models.inference import infer
from marble.models.routing import (
    TEACHERS,
    Router,
    allowance,
    descendants,
    distil,
    keep_best,
    oracle_scorer,
    random_scorer,
    routed,
)
from marble.models.zoo.marble import Marble
from marble.synthetic.bags import BagRecipe, direction, make_bag
from tests.models.contract import make_bag as nested_bag


def cells_of(bag: Bag, level: int) -> set[tuple[int, ...]]:
    return {tuple(cell) for cell in bag.levels[level].cells.tolist()}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    levels=st.integers(1, 4),
    tokens=st.integers(1, 90),
    budget=st.floats(0.01, 1.0),
    seed=st.integers(0, 10_000),
)
def test_what_is_kept_is_a_bag_of_whole_branches(levels: int, tokens: int, budget: float, seed: int) -> None:
    bag = nested_bag(tokens, levels, seed=seed)
    rest = routed(bag, budget, random_scorer(seed))
    Bag(rest.slide_id, rest.levels)  # every rule of a bag, parents among them
    for k in range(levels):
        assert cells_of(rest, k) <= cells_of(bag, k)
    if levels == 1:
        assert len(rest.finest) == tokens  # nothing coarser to choose from
        return
    # the finest tiles that are left are exactly those below the tiles chosen at the last step
    parent = rest.finest.parent
    assert parent is not None
    chosen = {tuple(cell) for cell in rest.levels[-2].cells.tolist()}
    below = {tuple(cell) for cell in bag.finest.cells.tolist() if (cell[0] // 2, cell[1] // 2) in chosen}
    assert cells_of(rest, levels - 1) == below
    kept_branches = len(torch.unique(parent))
    most = allowance(budget, tokens, levels - 2, levels)
    assert len(rest.finest) <= max(most, 4)  # 4 children at most: the one branch that always stays
    assert kept_branches >= 1


@pytest.mark.parametrize("levels", [2, 3, 4])
def test_stored_order_has_no_say_and_a_larger_budget_keeps_more(levels: int) -> None:
    bag = nested_bag(150, levels, seed=3)
    torch.manual_seed(0)
    model = build("marble", 32, 2, levels=levels, d_state=8).eval()
    router = Router(32, levels)
    sizes = []
    for budget in (0.1, 0.3, 0.6, 1.0):
        first = routed(bag, budget, router.scorer(model))
        again = routed(shuffled(bag, generator(budget)), budget, router.scorer(model))
        assert all(torch.equal(a.cells, b.cells) for a, b in zip(canonical(first).levels, canonical(again).levels))
        sizes.append(len(first.finest))
    assert sizes == sorted(sizes)
    assert sizes[-1] == 150
    assert routed(bag, 1.0, router.scorer(model)) is bag


def test_keep_best_by_brute_force() -> None:
    rng = torch.Generator().manual_seed(0)
    for _ in range(200):
        n = int(torch.randint(1, 12, (1,), generator=rng))
        scores = torch.randint(0, 4, (n,), generator=rng).float()  # with ties
        below = torch.randint(0, 5, (n,), generator=rng)
        most = int(torch.randint(0, 20, (1,), generator=rng))
        if not below.any():
            continue
        expected, used, has_any = set(), 0, False
        for tile in sorted(range(n), key=lambda i: (-float(scores[i]), i)):
            if has_any and used + int(below[tile]) > most:
                break
            if not has_any and used + int(below[tile]) > most and used > 0:
                break
            expected.add(tile)
            used += int(below[tile])
            has_any = has_any or used > 0
        found = set(keep_best(scores, below, most).nonzero()[:, 0].tolist())
        assert found == expected


def test_descendants_and_allowance() -> None:
    bag = nested_bag(70, 3, seed=1)
    for k in range(3):
        by_hand = [
            sum(tuple(c // 2 ** (2 - k) for c in cell) == tuple(tile) for cell in bag.finest.cells.tolist())
            for tile in bag.levels[k].cells.tolist()
        ]
        assert descendants(bag, k).tolist() == by_hand
    assert [allowance(0.25, 1000, k, 3) for k in range(2)] == [500, 250]
    assert [allowance(0.1, 1000, k, 4) for k in range(3)] == [464, 215, 100]  # cube roots
    assert allowance(0.1, 10, 0, 2) == 1  # not one too few by rounding


@pytest.mark.parametrize("budget", [0.0, -0.1, 1.1, float("nan")])
def test_a_budget_is_a_share(budget: float) -> None:
    with pytest.raises(InputError, match="budget must be more than 0 and at most 1"):
        routed(nested_bag(5, 2), budget, random_scorer())


@pytest.mark.parametrize("mixer", ["mamba2", "set"])
@pytest.mark.parametrize("levels", [2, 3, 4])
def test_coarse_tokens_are_what_the_full_model_makes_of_them(mixer: str, levels: int) -> None:
    torch.manual_seed(0)
    model = build("marble", 32, 2, levels=levels, d_state=8, mixer=mixer).double().eval()
    assert isinstance(model, Marble)
    bag = canonical(nested_bag(60, levels, seed=2, dtype=torch.float32)).to(dtype=torch.float64)
    found: list[Tensor] = []
    blocks = [block for level in model.mixers for block in level.children()]
    handles = [block.register_forward_hook(lambda _m, _i, out: found.append(out)) for block in blocks]
    with torch.no_grad():
        model.forward_as_written(bag)
        for handle in handles:
            handle.remove()
        for k in range(levels - 1):
            torch.testing.assert_close(model.coarse_tokens(bag.with_levels(bag.levels[: k + 1])), found[k])


def test_a_router_learns_where_the_model_looks() -> None:
    """Attention on pattern tiles, which lie below A alone: the router must rank A tiles first, from afar."""
    recipe = BagRecipe(dim=16, children=4, strength=9.0)
    bags = [canonical(make_bag(f"s{i}", 1.0, recipe)) for i in range(14)]
    model = build("abmil", 16, 2, hidden=8, attention_dim=4).eval()
    patterned = {bag.slide_id: bag.finest.features @ _direction("pattern") > 0 for bag in bags}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("marble.models.routing._attention", lambda _model, bag, _orders: _even(patterned[bag.slide_id]))
        router = distil(model, bags[:10], orders=1)
    for bag in bags[10:]:
        is_a = bag.levels[0].features @ _direction("region") > 0
        scores = router.scorer(model)(bag.with_levels(bag.levels[:1]))
        assert scores[is_a].min() > scores[~is_a].max()
        rest = routed(bag, 0.5, router.scorer(model))
        assert bool((rest.levels[0].features @ _direction("region") > 0).all())


def _even(shows: Tensor) -> Tensor:
    return shows.double() / shows.sum()


def _direction(name: str) -> Tensor:
    return direction(name, 16)


def test_the_oracle_keeps_the_most_attention() -> None:
    torch.manual_seed(0)
    model = build("marble", 32, 2, d_state=8).eval()
    assert isinstance(model, Marble)
    with torch.no_grad():
        model.score.weight.mul_(30)  # attention that is far from even
    bags = [nested_bag(200, 2, seed=seed, slide_id=f"s{seed}") for seed in range(24)]
    router = distil(model, bags[:18], orders=1)
    kept: dict[str, float] = {"routed": 0.0, "random": 0.0, "oracle": 0.0}
    for bag in map(canonical, bags[18:]):
        attention = infer(model, bag, 1).attention.double()
        where = {tuple(cell): float(value) for cell, value in zip(bag.finest.cells.tolist(), attention)}
        scorers = {
            "routed": router.scorer(model),
            "random": random_scorer(1),
            "oracle": oracle_scorer(model, bag, 1),
        }
        for name, scorer in scorers.items():
            kept[name] += sum(where[cell] for cell in cells_of(routed(bag, 0.25, scorer), 1))
    assert kept["oracle"] >= kept["routed"]
    assert kept["oracle"] > 1.5 * kept["random"]


def test_distilling_twice_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    bags = [nested_bag(60, 3, seed=seed, slide_id=f"s{seed}") for seed in range(3)]
    model = build("marble", 32, 2, levels=3, d_state=8).eval()
    first, second = distil(model, bags, 1, seed=4), distil(model, bags, 1, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


def test_models_that_look_at_nothing_finer_cannot_be_routed() -> None:
    model = build("abmil", 32, 2, level=0).eval()
    with pytest.raises(InputError, match="reads level 0 of 2: there are no finer tiles to choose"):
        distil(model, [nested_bag(20, 2)], 1)
    with pytest.raises(InputError, match="bags of 1 level have none"):
        Router(32, 1)


def test_bags_of_one_level_have_nothing_to_choose_from() -> None:
    model = build("abmil", 8, 2).eval()
    with pytest.raises(BagError, match="s: a bag of one level has no coarser one"):
        distil(model, [Bag.of_tokens(torch.ones(3, 8), "s")], 1)


def test_occlusion_as_a_teacher_is_the_change_of_the_logits_without_the_branch() -> None:
    recipe = BagRecipe(dim=16, children=4)
    bag = canonical(make_bag("slide", 1.0, recipe))
    torch.manual_seed(0)
    model = build("marble", 16, 2, d_state=4, mixer="set").eval()
    tiles = torch.tensor([0, 3, 5])
    whole = infer(model, bag).logits.double()
    for tile, moved in zip(tiles.tolist(), routing._moved(model, bag, 0, tiles, orders=1).tolist(), strict=True):
        keep = torch.arange(len(bag.levels[0])) != tile
        rest = infer(model, keep_branches(bag, keep)).logits.double()
        margin = (rest[1] - rest[0]) - (whole[1] - whole[0])
        assert moved == pytest.approx(abs(float(margin)) / 2**0.5)
        assert moved > 0
    for teacher in TEACHERS:
        assert distil(model, [bag], orders=1, teacher=teacher).levels == 2
