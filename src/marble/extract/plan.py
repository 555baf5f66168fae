"""What an extraction will cost, before it starts: lay the lattice over some slides, time a few reads and batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marble.encoders import Encoder
from marble.errors import InputError, MarbleError
from marble.extract.regions import blocks, read_block
from marble.extract.spec import ExtractSpec, Machine, load_encoders
from marble.slides.lattice import Pyramid, lay
from marble.slides.mpp import mpp_of
from marble.slides.readers.elsewhere import ReadingDesk
from marble.slides.slide import Slide
from marble.slides.tissue import segment

_CELL_BYTES = 2 * 4 + 8  # cell and parent of one tile
_TIMED_BLOCKS = 3


@dataclass(frozen=True)
class Estimate:
    """Expected cost of all slides, from those that were looked at.

    Args:
        slides: how many there are.
        sampled: how many of them were looked at.
        unusable: those of the sampled that will not give a bag, with the reason.
        tiles: of each level, over all slides.
        bytes: of all bags.
        seconds: with the threads of one process.
    """

    slides: int
    sampled: int
    unusable: tuple[tuple[Path, str], ...]
    tiles: tuple[int, ...]
    bytes: int
    seconds: float


def plan(
    paths: Sequence[str | Path],
    spec: ExtractSpec,
    *,
    machine: Machine | None = None,
    mpps: dict[str, float] | None = None,
    sample: int = 8,
    desk: ReadingDesk | None = None,
) -> Estimate:
    """Estimate tiles, bytes and time by looking at `sample` of the slides, evenly spread over the list.

    With a `desk` the slides are read in that process: what kills or halts a decoder is one more slide without a bag.
    """
    if not paths:
        raise InputError("no slides to plan for", hint="Give slide files, or folders that hold some")
    machine = machine or Machine()
    encoders = load_encoders(spec, machine)
    every = [Path(path) for path in paths]
    chosen = [every[int(i)] for i in np.linspace(0, len(every) - 1, min(sample, len(every))).round()]
    encode_s = [_seconds_per_tile(encoder, spec.batch) for encoder in encoders]
    tiles = np.zeros(spec.pyramid.depth)
    seconds, unusable = 0.0, []
    for path in chosen:
        began = time.perf_counter()
        try:
            with Slide.open(path, mpp=mpp_of(path, mpps or {}), desk=desk) as slide:
                tissue = segment(slide, spec.tissue)
                pyramid = lay(slide.l0_size_px, slide.mpp, tissue, spec.pyramid, name=path.name)
                found = time.perf_counter() - began
                read_s = [_read_seconds_per_tile(slide, pyramid, k, encoder) for k, encoder in enumerate(encoders)]
        except MarbleError as error:
            unusable.append((path, str(error)))
            seconds += time.perf_counter() - began
            continue
        counts = np.array([len(cells) for cells in pyramid.cells])
        tiles += counts
        seconds += found + float(counts @ (np.array(encode_s) + np.array(read_s))) / machine.thread_count
    share = len(every) / len(chosen)
    width = np.dtype(spec.dtype).itemsize
    size = sum(count * (encoder.dim * width + _CELL_BYTES) for count, encoder in zip(tiles, encoders, strict=True))
    return Estimate(
        slides=len(every),
        sampled=len(chosen),
        unusable=tuple(unusable),
        tiles=tuple(round(count * share) for count in tiles),
        bytes=round(size * share),
        seconds=seconds * share,
    )


def _seconds_per_tile(encoder: Encoder, batch: int) -> float:
    tiles = np.random.default_rng(0).integers(0, 256, (batch, encoder.input_px, encoder.input_px, 3), dtype=np.uint8)
    encoder.encode(tiles)  # the first call also warms up
    began = time.perf_counter()
    encoder.encode(tiles)
    return (time.perf_counter() - began) / batch


def _read_seconds_per_tile(slide: Slide, pyramid: Pyramid, level: int, encoder: Encoder) -> float:
    some = blocks(slide, pyramid, level)[:_TIMED_BLOCKS]
    began = time.perf_counter()
    for block in some:
        read_block(slide, block, pyramid.tile_px, encoder.input_px, encoder.fit, allow_upsample=pyramid.upsampled)
    return (time.perf_counter() - began) / sum(len(block.tiles) for block in some)
