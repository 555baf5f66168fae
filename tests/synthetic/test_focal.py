"""Focal bags: few regions that can be seen from afar, and only inside them does the pattern mean anything."""

from __future__ import annotations

from marble.synthetic.bags import CHANCE, BagRecipe, direction, make_focal_bag

RECIPE = BagRecipe(dim=16, strength=40.0)  # so strong that a tile's kind can be read off its token


def test_rates_inside_and_outside() -> None:
    inside: dict[int, list[float]] = {0: [], 1: []}
    outside: dict[int, list[float]] = {0: [], 1: []}
    for share in (0, 1):
        for number in range(60):
            bag = make_focal_bag(f"s{number}", share, RECIPE, seed=share)
            is_a = bag.levels[0].features @ direction("region", 16) > 0
            shows = bag.finest.features @ direction("pattern", 16) > 0
            assert int(is_a.sum()) == 3
            assert bag.finest.parent is not None
            below = is_a[bag.finest.parent]
            inside[share] += shows[below].double().tolist()
            outside[share] += shows[~below].double().tolist()
    rates = [sum(part) / len(part) for part in (inside[0], inside[1], outside[0], outside[1])]
    expected = (CHANCE, RECIPE.pattern_rate, CHANCE, CHANCE)
    counts = [len(part) for part in (inside[0], inside[1], outside[0], outside[1])]
    for rate, truth, count in zip(rates, expected, counts, strict=True):
        assert abs(rate - truth) < 4 * (truth * (1 - truth) / count) ** 0.5  # four standard errors, of fixed seeds
