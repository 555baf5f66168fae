"""The ends of `marble bench model`: how MARBLE's cost grows up to the largest slides, and what small bags cost.

A biopsy has a few hundred tiles and a resection a quarter of a million. Large bags are run once each, since a quarter
of a million tokens average out whatever the machine does meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from marble.bags.augment import generator
from marble.bags.bag import Bag
from marble.benchmarks.measure import growth_exponent, interleaved, once

SIZES = (4096, 16384, 65536, 262144)
SMALL_BAGS, SMALL_TOKENS = 64, (100, 500)


def growth(prepare: str, sizes: Sequence[int], passes: Sequence[str]) -> dict[str, Any]:
    """Seconds and peak memory of one pass at each size, and the exponent of the time.

    Args:
        prepare: "module:name" of what makes one pass of a model over a bag.
        sizes: fine tokens.
        passes: "forward", "forward+backward".
    """
    rows: list[dict[str, Any]] = []
    for which in passes:
        for tokens in sizes:
            peak, seconds = once(prepare, "marble", tokens, which, threads=torch.get_num_threads())
            rows.append({"tokens": tokens, "pass": which, "seconds": seconds, "bytes": peak})
    exponents = {
        which: growth_exponent(sizes, [row["seconds"] for row in rows if row["pass"] == which]) for which in passes
    }
    return {"rows": rows, "exponent": exponents}


def small_bags(
    one_bag: Callable[[Bag], object], make_bag: Callable[[int], Bag], products: Callable[[int], Callable[[], None]],
    count: int, repeats: int,
) -> dict[str, Any]:  # fmt: skip
    """Forward and backward of `count` bags, one after another, against the products of all their tokens at once."""
    rng = generator("bench", "small bags")
    sizes = torch.randint(*SMALL_TOKENS, (count,), generator=rng).tolist()
    bags = [make_bag(size) for size in sizes]
    seconds = interleaved({"bags": functools.partial(_each, one_bag, bags), "products": products(sum(sizes))}, repeats)
    ratio = seconds["bags"] / seconds["products"]
    return {"bags": count, "tokens": sum(sizes), "seconds": seconds, "ratio": ratio}


def _each(one_bag: Callable[[Bag], object], bags: Sequence[Bag]) -> None:
    for bag in bags:
        one_bag(bag)
