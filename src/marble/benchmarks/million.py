"""The largest bag of `marble bench model`: a million fine tokens in a memory map.

Their features are numbers of 16 bits in a file that is mapped into memory, as bags on disk are; each pass has a process
of its own, so that nothing but the map and the model is there. What is measured is the rise above the map's own pages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marble.bags.augment import generator
from marble.bags.bag import Bag, Level
from marble.benchmarks.measure import available_bytes, once
from marble.models import build

TOKENS = 1 << 20
DIM = 1024
#: of a parent's cell, side by side
RATIO = 4
#: what the largest pass may take, the map's pages, and room for everything else
NEEDS_BYTES = (4 << 30) + 2 * TOKENS * DIM + (1 << 30)


def measured(passes: Sequence[str], left_out: list[str], tokens: int = TOKENS) -> list[dict[str, Any]]:
    """Seconds and memory of each pass; none, and a line in `left_out`, where memory is too short for them."""
    if available_bytes() < NEEDS_BYTES:
        left_out.append(f"marble: a million tokens want {NEEDS_BYTES / 2**30:.0f} GiB of free memory")
        return []
    rows = []
    for which in passes:
        peak, seconds = once(f"{__name__}:prepare", tokens, which, threads=torch.get_num_threads())
        rows.append({"tokens": tokens, "pass": which, "seconds": seconds, "bytes": peak})
    return rows


def prepare(tokens: int, which: str) -> Callable[[], object]:
    """One pass of MARBLE over a mapped bag, warmed up on a tiny one."""
    torch.manual_seed(0)
    model = build("marble", DIM, 2).eval()

    def one_pass(bag: Bag) -> None:
        if which == "forward":
            with torch.inference_mode():
                model(bag)
        else:
            torch.autograd.backward(model(bag).logits.sum())

    one_pass(mapped_bag(64))
    for weight in model.parameters():
        weight.grad = None
    bag = mapped_bag(tokens)
    return lambda: one_pass(bag)


def mapped_bag(tokens: int) -> Bag:
    """A bag of two levels in random order, 16 fine tokens to a coarse one, both mapped."""
    rng = generator("bench", "mapped", tokens)
    R = -(-tokens // RATIO**2)
    coarse = torch.stack([torch.arange(R) // 1024, torch.arange(R) % 1024], dim=1)
    token = torch.randperm(tokens, generator=rng)
    parent, place = token // RATIO**2, token % RATIO**2
    fine = coarse[parent] * RATIO + torch.stack([place // RATIO, place % RATIO], dim=1)
    levels = [Level(_mapped(R, rng), coarse), Level(_mapped(tokens, rng), fine, parent, ratio=RATIO)]
    return Bag("bench", levels)  # is looked through whole, so that the map's pages are in memory from then on


def _mapped(tokens: int, rng: torch.Generator) -> Tensor:
    """(tokens, DIM) random numbers of 16 bits in a file, which goes when nobody reads it any more."""
    with tempfile.TemporaryFile() as file:
        for start in range(0, tokens, 4096):
            rows = torch.randn(min(4096, tokens - start), DIM, generator=rng)
            file.write(rows.half().numpy().tobytes())
        file.flush()
        return torch.from_numpy(np.memmap(file, np.float16, "c", shape=(tokens, DIM)))
