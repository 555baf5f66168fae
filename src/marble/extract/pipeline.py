"""From a level of the lattice to its tokens: read ahead, encode side by side, in an order that never changes.

Which tiles share a batch follows from the lattice alone. However many threads there are, and whichever ends first,
the encoder sees the same batches, so the bag has the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from marble.compute.ahead import in_order
from marble.encoders import Encoder
from marble.extract.feeding import fed
from marble.extract.regions import Block, Cut, blocks, read_block
from marble.slides.lattice import Pyramid
from marble.slides.quality import COLUMNS, QualitySpec, measure, outside
from marble.slides.slide import Slide

Batch = tuple[NDArray[np.int64], NDArray[np.uint8]]  # tiles (n,), pixels (n, px, px, 3)


@dataclass(frozen=True, eq=False)
class LevelTokens:
    """What became of one level's tiles.

    Args:
        features: (T, D); rows of tiles that were not encoded are zero.
        encoded: (T,) true where a row holds a token.
        missing: (T,) true where the slide lacks pixels of the tile.
        looks: (T, 4) how good each tile is to look at (`slides.quality`), if that was measured.
        rejected: (T,) true where a tile was not encoded for its looks.
    """

    features: NDArray[np.floating]
    encoded: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    looks: NDArray[np.float32] | None = None
    rejected: NDArray[np.bool_] | None = None


class Threads(NamedTuple):
    """The threads that read and encode, and how many they are."""

    pool: ThreadPoolExecutor
    number: int


@dataclass(frozen=True, eq=False)
class Wanted:
    """Which tiles of a level are wanted.

    Args:
        keep: (T,) tiles to encode; the others are read, to learn what is missing, and not encoded.
        only: indices of the tiles to look at; the others are not even read.
        quality: measure how tiles look, and leave out those that are not good enough.
    """

    keep: NDArray[np.bool_] | None = None
    only: NDArray[np.int64] | None = None
    quality: QualitySpec | None = None


def encode_level(
    slide: Slide,
    pyramid: Pyramid,
    level: int,
    encoder: Encoder,
    threads: Threads,
    wanted: Wanted | None = None,
    *,
    batch: int,
    dtype: DTypeLike = np.float32,
    on_tiles: Callable[[int], None] | None = None,
) -> LevelTokens:
    """Read and encode one level.

    Args:
        slide: the open slide.
        pyramid: its lattice.
        level: which level of it.
        encoder: of this level.
        threads: run the reads and the encoder; their number says how much is done ahead.
        wanted: which of its tiles; all of them by default.
        batch: tiles encoded together.
        dtype: of the features.
        on_tiles: told how many more tiles are done.
    """
    count = len(pyramid.cells[level])
    features = np.zeros((count, encoder.dim), dtype)
    encoded, missing = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    wanted = wanted or Wanted()
    quality = wanted.quality
    keep = np.ones(count, np.bool_) if wanted.keep is None else wanted.keep
    looks = np.zeros((count, len(COLUMNS)), np.float32)
    looks[:, 3] = outside(pyramid.boxes(level), slide.l0_size_px)
    rejected = np.zeros(count, np.bool_)
    look = None if quality is None else partial(measure, mpp=pyramid.mpps[level])
    tell = on_tiles or (lambda _more: None)
    wanted_blocks = blocks(slide, pyramid, level, wanted.only)

    def read(block: Block) -> Cut:
        px = pyramid.tile_px
        return read_block(slide, block, px, encoder.input_px, encoder.fit, allow_upsample=pyramid.upsampled, look=look)

    def whole_tiles() -> Iterator[Batch]:
        for cut in in_order(threads.pool, read, wanted_blocks, ahead=threads.number + 1):
            missing[cut.missing] = True
            chosen = keep[cut.tiles]
            if quality is not None and cut.looks is not None:
                looks[cut.tiles, :3] = cut.looks
                rejected[cut.tiles] = chosen & ~quality.keeps(looks[cut.tiles])
                chosen &= ~rejected[cut.tiles]
            tell(len(cut.missing) + int((~chosen).sum()))
            yield cut.tiles[chosen], cut.pixels[chosen]

    def encode(part: Batch) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return part[0], encoder.encode(part[1])

    parts = batches(whole_tiles(), batch)
    # on a CPU the threads that read also encode
    done = fed(encoder, parts) if encoder.feeds else in_order(threads.pool, encode, parts, ahead=threads.number + 1)
    for tiles, tokens in done:
        features[tiles] = tokens
        encoded[tiles] = True
        tell(len(tiles))
    return LevelTokens(features, encoded, missing, None if quality is None else looks, rejected)


def batches(parts: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Regroup parts of any size into batches of exactly `size`; the last one may be smaller."""
    tiles: list[NDArray[np.int64]] = []
    pixels: list[NDArray[np.uint8]] = []
    held = 0
    for part_tiles, part_pixels in parts:
        start = 0
        while start < len(part_tiles):
            stop = min(len(part_tiles), start + size - held)
            tiles.append(part_tiles[start:stop])
            pixels.append(part_pixels[start:stop])
            held += stop - start
            start = stop
            if held == size:
                yield np.concatenate(tiles), np.concatenate(pixels)
                tiles, pixels, held = [], [], 0
    if held:
        yield np.concatenate(tiles), np.concatenate(pixels)
