"""Slides that show the same tissue under two names: scanned again, compressed again, or put into another container.

Neither hashes of files nor of bags tell them. What tells them is where alike tiles lie: of two scans of one slide, the
tile of one that is most like a tile of the other lies at the same place, up to one shift for all; of different tissue
it lies anywhere. So nothing has to be known of the encoder, its scale or how alike tissue of one kind is.

Every slide is compared only with the few whose tokens have nearly its mean or its spread, so that 1,000 slides take
seconds. A slide that was turned or mirrored between two scans is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from marble.bags.bag import Bag
from marble.bags.store import BagStore

#: tiles of one slide that are looked for in the other
SAMPLED = 64
#: fewer tell nothing: where there are few tiles, alike ones lie close to each other by chance
FEWEST = 16
#: a level with so many is fine enough; the coarsest such is taken, since a small shift moves its tiles least
ENOUGH = 20
#: slides whose tokens are held at a time, so that a large store needs no more memory than a small one
HELD = 256
#: slides that each slide is compared with, by its mean and by its spread
NEIGHBOURS = 5
#: share of the tiles whose likeness lies where the others' does. Copies had 0.88 and more (compressed again, or shifted
#: by up to a sixteenth of a tile), different tissue at most 0.46, and 0.69 where one and the same lesion was drawn into
#: it: a study that is refused without reason is worse than a copy that is shifted far and not found
THRESHOLD = 0.8


@dataclass(frozen=True)
class Lookalikes:
    """Two slides that look alike, and the share of tiles that say so."""

    one: str
    other: str
    share: float


@dataclass(frozen=True)
class Look:
    """A slide as it is compared: the tokens of its coarsest level that has enough tiles, and their cells."""

    slide_id: str
    tokens: NDArray[np.float32]  # (T, D)
    cells: NDArray[np.int64]  # (T, 2)

    @classmethod
    def of(cls, bag: Bag) -> Look | None:
        """None where no level has enough tiles to tell."""
        level = next((level for level in bag.levels if len(level.cells) >= ENOUGH), bag.levels[-1])
        if len(level.cells) < FEWEST:
            return None
        return cls(bag.slide_id, level.features.detach().float().numpy(), level.cells.numpy())


def lookalikes(store: BagStore, slides: Iterable[str]) -> list[Lookalikes]:
    """The pairs of these slides of a store that look alike."""

    @lru_cache(maxsize=HELD)
    def look(slide: str) -> Look | None:
        return Look.of(store.load(slide))

    return alike(sorted(slides), look)


def alike(slides: Iterable[str], look: Callable[[str], Look | None]) -> list[Lookalikes]:
    """The pairs that look alike, by name; `look` is asked for a slide whenever its tokens are needed."""
    means, spreads = {}, {}
    for slide in slides:
        if (found := look(slide)) is not None:
            means[slide] = found.tokens.mean(axis=0)  # (D,)
            spreads[slide] = found.tokens.std(axis=0)  # (D,): whatever another scanner adds to all tiles is not in it
    names = list(means)
    if len(names) < 2:
        return []
    near = _neighbours(np.stack(list(means.values()))) | _neighbours(np.stack(list(spreads.values())))
    pairs = []
    for one, other in sorted((names[i], names[j]) for i, j in near):
        here, there = look(one), look(other)
        assert here is not None
        assert there is not None
        if (share := agreement(here, there)) >= THRESHOLD:
            pairs.append(Lookalikes(one, other, share))
    return pairs


def agreement(one: Look, other: Look) -> float:
    """Share of the tiles of the smaller slide that agree on one shift to the tile of the other that is most like them.

    A tile counts only if it is also the one most like that tile: some tiles are a little like all others.
    """
    small, large = sorted((one, other), key=lambda look: len(look.cells))
    asked = np.linspace(0, len(small.cells) - 1, min(SAMPLED, len(small.cells))).astype(np.int64)
    likeness = _unit(small.tokens)[asked] @ _unit(large.tokens).T  # (sampled, T)
    best = likeness.argmax(axis=1)  # (sampled,)
    mutual = likeness[:, best].argmax(axis=0) == np.arange(len(asked))
    shifts = (large.cells[best] - small.cells[asked])[mutual]  # (mutual, 2)
    # a shift by part of a tile divides the tiles between neighbouring shifts
    near = (np.abs(shifts[:, None] - shifts[None]) <= 1).all(axis=-1)  # (mutual, mutual)
    return float(near.sum(axis=1).max() / len(asked)) if len(shifts) else 0.0


def _neighbours(signatures: NDArray[np.float32]) -> set[tuple[int, int]]:
    """Pairs of which one is among the nearest of the other; every feature counts by how far slides differ in it."""
    spread = signatures.std(axis=0)
    points = (signatures - signatures.mean(axis=0)) / np.where(spread > 0, spread, 1)
    squares = (points**2).sum(axis=1)
    distances = squares[:, None] + squares[None] - 2 * points @ points.T  # (S, S)
    np.fill_diagonal(distances, np.inf)
    count = min(NEIGHBOURS, len(points) - 1)
    nearest = np.argpartition(distances, count - 1, axis=1)[:, :count]
    return {(min(i, j), max(i, j)) for i, row in enumerate(nearest.tolist()) for j in row}


def _unit(tokens: NDArray[np.float32]) -> NDArray[np.float32]:
    """Tokens by what sets them apart on their own slide, at length 1: stain and compression shift all of them alike."""
    rows = tokens - tokens.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), np.float32)
