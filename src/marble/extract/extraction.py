"""The work on one slide: segment, lay, read, encode, and what the bag and its record say of it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marble.bags import Bag, Geometry, Level, Provenance, SlideIdentity
from marble.encoders import Encoder
from marble.errors import SlideError
from marble.extract.choosing import Chooser, chosen
from marble.extract.pipeline import LevelTokens, Threads, Wanted, encode_level
from marble.extract.source import Source
from marble.extract.spec import ExtractSpec, Machine
from marble.slides import quality
from marble.slides.lattice import NoTissueError, Pyramid, lay
from marble.slides.slide import Slide
from marble.slides.tissue import Tissue, tissue_for
from marble.threads import torch_threads
from marble.version import VERSION


@dataclass(frozen=True)
class Progress:
    """How far a slide is."""

    slide_id: str
    done: int
    total: int
    seconds: float

    @property
    def tiles_per_s(self) -> float:
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float:
        return (self.total - self.done) / self.tiles_per_s if self.done else float("inf")


class NothingToExtract(Exception):  # noqa: N818  not an error: the slide was looked at and has nothing to give
    """There is no tissue on the slide, or none of it is good enough to look at."""


@dataclass
class Extraction:
    """The work on one slide; `stage` is the step under way, for the record of a slide that fails in it."""

    path: Path
    slide_id: str
    spec: ExtractSpec
    machine: Machine
    encoders: list[Encoder]
    source: Source
    outlines: Path | None
    on_progress: Callable[[Progress], None] | None
    chooser: Chooser | None = None
    private: bool = False  # nothing may tell the file's name
    stage: str = "open"

    def run(self) -> tuple[Bag, dict[str, Any]]:
        """The bag, and what its record tells beyond it."""
        # Batches run side by side, each on one thread: sums then do not depend on how many cores there are.
        with Slide.open(self.path, mpp=self.source.mpp) as slide, torch_threads(1):
            self.stage = "segment"
            tissue = tissue_for(slide, self.spec.tissue, self.outlines)
            self.stage = "lay"
            pyramid = _lay(slide, tissue, self.spec)
            self.stage = "encode"
            tokens = self._encode(slide, pyramid)
            self.stage = "assemble"
            bag = Bag(self.slide_id, _levels(pyramid, tokens), self._provenance(slide, pyramid))
        details = {
            "source": self.source.record(),
            "tissue": {
                "fraction": tissue.fraction,
                **tissue.measures,
                "in_tiles": pyramid.tissue_in_tiles,
                "beyond_tiles": pyramid.tissue_beyond,
            },
            "lattice": pyramid.record(),
            "missing_tiles": [int(level.missing.sum()) for level in tokens],
            "dropped_with_parent": [
                int((~level.encoded & ~level.missing & ~_rejected(level)).sum()) for level in tokens
            ],
            "quality": _quality(tokens[-1]),
        }
        if self.chooser is not None:
            details["route"] = self.chooser.identity()
        return bag, details

    def _encode(self, slide: Slide, pyramid: Pyramid) -> list[LevelTokens]:
        """Every level, coarsest first; a tile is encoded if its parent was.

        Beyond the limit of missing tiles nothing is encoded any more, and the rest is only read, so that the refusal
        names the exact number.
        """
        total = sum(len(cells) for cells in pyramid.cells)
        limit = self.spec.max_missing * total
        count = _Counter(self.slide_id, total, self.on_progress)
        threads = self.machine.thread_count
        levels: list[LevelTokens] = []
        missing = 0
        with ThreadPoolExecutor(threads) as pool:
            for level, encoder in enumerate(self.encoders):
                parent = pyramid.parents[level]
                keep = np.ones(len(pyramid.cells[level]), np.bool_) if parent is None else levels[-1].encoded[parent]
                # below a branch that was not chosen nothing is read, not even to learn what is missing
                only = None if self.chooser is None or not keep.any() else np.flatnonzero(keep)
                count.add(0 if only is None else len(keep) - len(only))
                wanted = Wanted(
                    keep & (missing <= limit), only, self.spec.quality if level == pyramid.depth - 1 else None
                )
                done = encode_level(
                    slide, pyramid, level, encoder, Threads(pool, threads), wanted,
                    batch=self.spec.batch, dtype=self.spec.dtype, on_tiles=count.add,
                )  # fmt: skip
                levels.append(done)
                missing += int(done.missing.sum())
                if self.chooser is not None and level + 1 < pyramid.depth and missing <= limit:
                    seen = _levels(pyramid, levels)
                    levels[-1] = chosen(self.chooser, self.slide_id, pyramid, seen, done, level)
        if missing > limit:
            raise SlideError(
                f"{missing} of {total} tiles lack pixels ({missing / total:.1%}; the limit is "
                f"{self.spec.max_missing:.1%})",
                where=slide.path.name,
                hint="Copy or export the file again",
            )
        if not levels[-1].encoded.any():
            raise NothingToExtract(
                f"none of {len(levels[-1].encoded)} finest tiles is good enough to look at, or has a parent"
            )
        return levels

    def _provenance(self, slide: Slide, pyramid: Pyramid) -> Provenance:
        width, height = slide.l0_size_px
        far = [encoder.far_from(mpp) for encoder, mpp in zip(self.encoders, pyramid.mpps, strict=True)]
        cautions = list(dict.fromkeys(sentence for sentence in far if sentence))
        for caution in cautions:
            warnings.warn(caution, stacklevel=2)
        identities = [encoder.identity() for encoder in self.encoders]
        return Provenance(
            source=f"marble {VERSION}",
            spec=self.spec.fingerprint(),
            slide=SlideIdentity(
                name=self.slide_id if self.private else slide.name,
                l0_width_px=width,
                l0_height_px=height,
                mpp=slide.mpp,
                mpp_origin=slide.mpp_origin,
                sha256=self.source.sha256,
                verified=self.source.verified,
            ),
            l0_origin_px=pyramid.l0_origin_px,
            levels=tuple(
                Geometry(
                    magnification=pyramid.magnifications[k],
                    mpp=pyramid.mpps[k],
                    tile_px=pyramid.tile_px,
                    l0_extent_px=pyramid.l0_extents_px[k],
                )
                for k in range(pyramid.depth)
            ),
            encoders=tuple(identities[:1] if len(set(self.spec.encoder_of_level)) == 1 else identities),
            notes={
                "extract": self.spec.model_dump(mode="json"),
                "backends": [encoder.backend for encoder in self.encoders],
                "upsampled": pyramid.upsampled,
                "cautions": cautions,
            }
            | ({} if self.chooser is None else {"route": self.chooser.identity()}),
        )


def _lay(slide: Slide, tissue: Tissue, spec: ExtractSpec) -> Pyramid:
    try:
        return lay(slide.l0_size_px, slide.mpp, tissue, spec.pyramid, name=slide.path.name)
    except NoTissueError as error:
        raise NothingToExtract(str(error)) from None


def _rejected(level: LevelTokens) -> NDArray[np.bool_]:
    return np.zeros(len(level.encoded), np.bool_) if level.rejected is None else level.rejected


def _quality(finest: LevelTokens) -> dict[str, Any]:
    """What the record says of how the bag's finest tiles look."""
    looks = np.zeros((0, len(quality.COLUMNS)), np.float32) if finest.looks is None else finest.looks[finest.encoded]
    return quality.to_record(looks, int(_rejected(finest).sum()))


class _Counter:
    def __init__(self, slide_id: str, total: int, tell: Callable[[Progress], None] | None) -> None:
        self.slide_id, self.total, self.tell = slide_id, total, tell
        self.done, self.began = 0, time.monotonic()

    def add(self, more: int) -> None:
        self.done += more
        if self.tell is not None:
            self.tell(Progress(self.slide_id, self.done, self.total, time.monotonic() - self.began))


def _levels(pyramid: Pyramid, tokens: list[LevelTokens]) -> list[Level]:
    """The encoded tiles, with parents counted among the encoded ones."""
    levels = []
    above: NDArray[np.int64] | None = None
    for k, level in enumerate(tokens):
        kept = level.encoded
        features: Any = level.features if kept.all() else level.features[kept]  # no copy in the usual case
        cells: Any = pyramid.cells[k][kept]
        parent = pyramid.parents[k]
        if parent is None or above is None:
            levels.append(Level(features, cells))
        else:
            of_kept: Any = above[parent[kept]]
            levels.append(Level(features, cells, of_kept, pyramid.ratios[k - 1]))
        above = np.cumsum(kept) - 1
    return levels
