"""What an extraction will cost, before it starts: lay the lattice over some slides, time a few reads and batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marble.encoders import Encoder
from marble.errors import InputError, MarbleError
from marble.extract.cost import Fleet, SlideCost, bill
from marble.extract.regions import Block, blocks, read_block
from marble.extract.source import size_of
from marble.extract.spec import ExtractSpec, Machine, load_encoders
from marble.slides.lattice import Pyramid, lay
from marble.slides.mpp import mpp_of
from marble.slides.quality import measure
from marble.slides.readers.elsewhere import ReadingDesk
from marble.slides.slide import Slide
from marble.slides.tissue import segment
from marble.threads import torch_threads

_CELL_BYTES, _PARENT_BYTES = 2 * 4, 8  # of one tile
#: of a level; enough that full blocks and blocks at the edge of the tissue are among them
_TIMED_BLOCKS = 6
_TIMED_BATCHES = 3


@dataclass(frozen=True)
class Estimate:
    """Expected cost of all slides, from those that were looked at.

    Args:
        slides: how many there are.
        sampled: how many of them were looked at.
        unusable: those of the sampled that will not give a bag, with the reason.
        tiles: of each level, over all slides.
        each: what a slide costs on average, with seconds of one core of this machine.
        threads: of one process here.
    """

    slides: int
    sampled: int
    unusable: tuple[tuple[Path, str], ...]
    tiles: tuple[int, ...]
    each: SlideCost
    threads: int

    @property
    def bytes(self) -> int:
        """Of all bags."""
        return round(self.slides * self.each.bag_bytes)

    @property
    def seconds(self) -> float:
        """With the threads of one process here."""
        return bill(self.each, self.slides, Fleet(cores=self.threads)).extract_hours * 3600


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
    tiles = np.zeros(spec.pyramid.depth)
    costs: list[SlideCost] = []
    unusable = []
    with torch_threads(1):  # as extraction encodes: batches side by side, each on one thread
        encode_s = np.array([_seconds_per_tile(encoder, spec.batch) for encoder in encoders])
        for path in chosen:
            began = time.perf_counter()
            try:
                with Slide.open(path, mpp=mpp_of(path, mpps or {}), desk=desk) as slide:
                    tissue = segment(slide, spec.tissue)
                    pyramid = lay(slide.l0_size_px, slide.mpp, tissue, spec.pyramid, name=path.name)
                    open_s = time.perf_counter() - began
                    counts = np.array([len(cells) for cells in pyramid.cells])
                    reads = [blocks(slide, pyramid, level) for level in range(pyramid.depth)]
                    read_s = [
                        _seconds_per_read_tile(slide, pyramid, level, some, encoders[level])
                        for level, some in enumerate(reads)
                    ]
            except MarbleError as error:
                unusable.append((path, str(error)))
                costs.append(SlideCost(0, 0, size_of(path), 0, time.perf_counter() - began, 0, 0))
                continue
            tiles += counts
            costs.append(
                SlideCost(
                    tiles=float(counts.sum()),
                    reads=sum(len(some) for some in reads),
                    slide_bytes=size_of(path),
                    bag_bytes=float(counts @ _bytes_per_tile(spec, encoders)),
                    open_s=open_s,
                    read_s=float(counts @ np.array(read_s)),
                    encode_s=float(counts @ encode_s),
                )
            )
    share = len(every) / len(chosen)
    return Estimate(
        slides=len(every),
        sampled=len(chosen),
        unusable=tuple(unusable),
        tiles=tuple(round(count * share) for count in tiles),
        each=_mean(costs),
        threads=machine.thread_count,
    )


def _mean(costs: Sequence[SlideCost]) -> SlideCost:
    return SlideCost(*(float(np.mean([getattr(cost, field.name) for cost in costs])) for field in fields(SlideCost)))


def _bytes_per_tile(spec: ExtractSpec, encoders: Sequence[Encoder]) -> NDArray[np.int64]:
    """(levels,) of a token, its cell and, below the coarsest level, its parent."""
    width = np.dtype(spec.dtype).itemsize
    parents = [0 if level == 0 else _PARENT_BYTES for level in range(len(encoders))]
    return np.array([encoder.dim * width + _CELL_BYTES + more for encoder, more in zip(encoders, parents, strict=True)])


def _seconds_per_tile(encoder: Encoder, batch: int) -> float:
    tiles = np.random.default_rng(0).integers(0, 256, (batch, encoder.input_px, encoder.input_px, 3), dtype=np.uint8)
    encoder.encode(tiles)  # the first call also warms up
    began = time.perf_counter()
    for _ in range(_TIMED_BATCHES):
        encoder.encode(tiles)
    return (time.perf_counter() - began) / (batch * _TIMED_BATCHES)


def _seconds_per_read_tile(
    slide: Slide, pyramid: Pyramid, level: int, every: Sequence[Block], encoder: Encoder
) -> float:
    """Over some reads of a level, evenly spread; as extraction makes them, with a look at the finest tiles."""
    some = [every[int(i)] for i in np.linspace(0, len(every) - 1, min(_TIMED_BLOCKS, len(every))).round()]
    look = partial(measure, mpp=pyramid.mpps[level]) if level == pyramid.depth - 1 else None
    began = time.perf_counter()
    for block in some:
        read_block(
            slide, block, pyramid.tile_px, encoder.input_px, encoder.fit, allow_upsample=pyramid.upsampled, look=look
        )
    return (time.perf_counter() - began) / sum(len(block.tiles) for block in some)
