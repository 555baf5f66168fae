"""One nested lattice over all magnifications of a slide.

One origin; the finest tile is a whole number of level-0 pixels wide; every coarser tile is a whole multiple of it. A
tile's parent is then `cell // ratio`, by integer division of cells, never of rounded pixels, and every fine tile lies
inside exactly one coarse one.

Decisions.

* A scan within `mpp_tolerance` of the asked finest pixel size counts as having it: its tiles are `tile_px` level-0
  pixels wide, and the actual pixel size is recorded. Otherwise the width is the nearest whole number of pixels.
* A finer magnification than the scan's is refused, or allowed explicitly and recorded (`Pyramid.upsampled`).
* A finest tile lies wholly inside the picture, or, with `edge = "pad"`, may reach over its right or lower edge (white
  there, and counted as overhanging). What tissue lies beyond the last whole tile is measured either way.
* A coarser tile may overhang the edge if it has children; without children it must lie inside.
* A tile exists if the tissue covers enough of it and its parent exists. A tile without a kept parent is an orphan:
  dropped, with all below it, and counted.
* A coarse tile without children is kept by default: it is tissue seen from afar.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from marble.cells import MAX_RATIO, cell_boxes
from marble.errors import SlideError
from marble.magnification import magnification_at, mpp_at
from marble.slides.tissue import Tissue
from marble.specs import Spec

DEFAULT_FINEST_COVERAGE, DEFAULT_COARSE_COVERAGE = 0.25, 0.02
_RATIO_SLACK = 1e-3
_EPSILON = 1e-9

Cells = npt.NDArray[np.int32]  # (T, 2) of row, column
Indices = npt.NDArray[np.int64]  # (T,)


class NoTissueError(SlideError):
    """A slide that can be read, but none of its tiles has enough tissue."""


class PyramidSpec(Spec):
    """Which magnifications, how large the tiles, and how much tissue a tile needs. Levels go coarsest first."""

    magnifications: tuple[float, ...] = Field(default=(), description="nominal, 10 = 1 um/px; or give mpps")
    mpps: tuple[float, ...] = Field(default=(), description="um per pixel; or give magnifications")
    tile_px: int = Field(default=256, ge=16, le=4096)
    coverage: tuple[float, ...] = Field(
        default=(),
        description=f"least tissue fraction of a tile, for each level; empty: {DEFAULT_FINEST_COVERAGE} at the finest, "
        f"{DEFAULT_COARSE_COVERAGE} at the others; 0 keeps background too",
    )
    keep_childless: bool = Field(default=True, description="keep coarse tiles without any fine tile")
    allow_upsample: bool = Field(default=False, description="allow a magnification the scan does not have")
    mpp_tolerance: float = Field(default=0.15, ge=0, lt=0.5)
    l0_origin_px: tuple[int, int] = Field(default=(0, 0), description="(x, y) of cell (0, 0)")
    edge: Literal["drop", "pad"] = Field(
        default="drop",
        description="finest tiles over the picture's right and lower edge: left out, or padded with white",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.magnifications) == bool(self.mpps):
            raise ValueError("give magnifications or mpps, and not both")
        if min(self.mpps or self.magnifications) <= 0:
            raise ValueError("magnifications and mpps must be positive")
        if self.coverage and len(self.coverage) != self.depth:
            raise ValueError(f"{len(self.coverage)} coverage thresholds for {self.depth} levels")
        if any(not 0 <= threshold <= 1 for threshold in self.coverage):
            raise ValueError("coverage thresholds must be in 0 to 1")
        if min(self.l0_origin_px) < 0:
            raise ValueError("the origin must lie inside the slide")
        self.ratios  # noqa: B018  refuses what does not nest
        return self

    @property
    def depth(self) -> int:
        return len(self.magnifications or self.mpps)

    @property
    def asked_mpps(self) -> tuple[float, ...]:
        return self.mpps or tuple(mpp_at(magnification) for magnification in self.magnifications)

    @property
    def ratios(self) -> tuple[int, ...]:
        """How many tiles of level k+1 lie side by side in one of level k."""
        ratios = []
        for coarse, fine in zip(self.asked_mpps, self.asked_mpps[1:]):
            ratio = round(coarse / fine)
            if not 2 <= ratio <= MAX_RATIO or abs(coarse / fine - ratio) > _RATIO_SLACK * ratio:
                names = [f"{magnification_at(mpp):g}x ({mpp:g} um/px)" for mpp in (coarse, fine)]
                raise ValueError(
                    f"{names[0]} and {names[1]} do not nest: {coarse / fine:g} of one in the other, not a "
                    f"whole number in 2 to {MAX_RATIO}. Give the coarsest first, with whole ratios, for "
                    "example 2.5, 10"
                )
            ratios.append(ratio)
        return tuple(ratios)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The coverage each level needs."""
        return self.coverage or (*(DEFAULT_COARSE_COVERAGE,) * (self.depth - 1), DEFAULT_FINEST_COVERAGE)


@dataclass(frozen=True)
class LevelCounts:
    """What became of one level's cells."""

    places: int  # cells that a tile of this level can take
    covered: int  # with enough tissue
    orphans: int  # dropped: no kept parent
    childless: int  # kept without any child (always 0 at the finest level)
    childless_dropped: int
    overhanging: int  # kept, and partly outside the picture
    kept: int


@dataclass(frozen=True, eq=False)
class Pyramid:
    """The lattice of one slide; level 0 is the coarsest.

    Args:
        l0_origin_px: (x, y) of cell (0, 0).
        l0_extents_px: side of a tile of each level.
        tile_px: side of a tile as read, at every level.
        ratios: `ratios[k]` tiles of level k+1 lie side by side in one of level k.
        cells: (T, 2) row and column for each level, sorted row-major.
        parents: (T,) index into the level above; None for level 0.
        mpps: actual um per pixel of the tiles as read.
        magnifications: as asked, nominal.
        upsampled: the scan is coarser than the finest level asked for.
        counts: what was dropped and why.
        tissue_in_tiles: share of the tissue that lies in finest tiles.
        tissue_beyond: share of it that lies beyond the last whole tile, at the right and lower edge.
    """

    l0_origin_px: tuple[int, int]
    l0_extents_px: tuple[int, ...]
    tile_px: int
    ratios: tuple[int, ...]
    cells: tuple[Cells, ...]
    parents: tuple[Indices | None, ...]
    mpps: tuple[float, ...]
    magnifications: tuple[float, ...]
    upsampled: bool
    counts: tuple[LevelCounts, ...]
    tissue_in_tiles: float = 1.0
    tissue_beyond: float = 0.0

    @property
    def depth(self) -> int:
        return len(self.cells)

    def boxes(self, level: int) -> npt.NDArray[np.int64]:
        """(T, 4) x, y, width, height of a level's tiles in level-0 pixels."""
        extent = self.l0_extents_px[level]
        return cell_boxes(self.cells[level], extent, self.l0_origin_px)

    def record(self) -> list[dict[str, Any]]:
        """Counts for each level, ready for JSON."""
        return [asdict(counts) for counts in self.counts]


def lay(l0_size_px: tuple[int, int], mpp: float, tissue: Tissue, spec: PyramidSpec, *, name: str = "slide") -> Pyramid:
    """Lay the lattice over a slide of `l0_size_px` (width, height) with `mpp` um per pixel. `name` is for errors."""
    extent, upsampled = _finest_extent(mpp, spec, name)
    ratios = spec.ratios
    scales = tuple(int(np.prod(ratios[k:], dtype=np.int64)) for k in range(spec.depth))  # finest tiles per side
    extents = tuple(extent * scale for scale in scales)
    origin = spec.l0_origin_px
    rows, columns = whole = tuple((l0_size_px[axis] - origin[axis]) // extent for axis in (1, 0))
    if spec.edge == "pad":
        rows, columns = (-(-(l0_size_px[axis] - origin[axis]) // extent) for axis in (1, 0))
    if min(whole) <= 0 and (spec.edge == "drop" or min(rows, columns) <= 0):
        raise SlideError(
            f"{l0_size_px[0]} x {l0_size_px[1]} pixels are smaller than one tile of {extent}",
            where=name,
            hint="Use smaller tiles or a higher magnification",
        )
    shapes = [(-(-rows // scale), -(-columns // scale)) for scale in scales]
    covered = [_covered(shape, extents[k], origin, tissue, spec.thresholds[k]) for k, shape in enumerate(shapes)]
    kept = [covered[0].copy()]
    for k, ratio in enumerate(ratios, start=1):
        kept.append(covered[k] & _spread(kept[k - 1], ratio, shapes[k]))
    orphans = [int(here.sum() - there.sum()) for here, there in zip(covered, kept, strict=True)]
    inside = [_inside(shape, extents[k], origin, l0_size_px) for k, shape in enumerate(shapes)]
    dropped = [0] * spec.depth
    childless = [0] * spec.depth
    for k in range(spec.depth - 2, -1, -1):  # from below: a tile may become childless by what its children lost
        lonely = kept[k] & ~_gathered(kept[k + 1], ratios[k], shapes[k])
        gone = lonely & ~inside[k] if spec.keep_childless else lonely
        kept[k] &= ~gone
        dropped[k], childless[k] = int(gone.sum()), int(lonely.sum() - gone.sum())
    if not kept[-1].any():
        raise NoTissueError(
            f"no tile has enough tissue (the mask covers {tissue.fraction:.1%} of the slide)",
            where=name,
            hint="Look at it with `marble tile`; lower `--coverage`, or give `--outlines`",
        )
    cells = tuple(np.argwhere(level).astype(np.int32) for level in kept)
    parents = (None, *(_parents(cells[k], kept[k - 1], ratios[k - 1]) for k in range(1, spec.depth)))
    counts = tuple(
        LevelCounts(
            places=shape[0] * shape[1],
            covered=int(covered[k].sum()),
            orphans=orphans[k],
            childless=childless[k],
            childless_dropped=dropped[k],
            overhanging=int((kept[k] & ~inside[k]).sum()),
            kept=len(cells[k]),
        )
        for k, shape in enumerate(shapes)
    )
    mpps = tuple(mpp * side / spec.tile_px for side in extents)
    magnifications = tuple(magnification_at(asked) for asked in spec.asked_mpps)
    in_tiles, beyond = _tissue_shares(tissue, cells[-1], extent, origin, (whole[0], whole[1]))
    return Pyramid(
        origin, extents, spec.tile_px, ratios, cells, parents, mpps, magnifications, upsampled, counts, in_tiles, beyond
    )


def _tissue_shares(
    tissue: Tissue, cells: Cells, extent: int, origin: tuple[int, int], whole: tuple[int, int]
) -> tuple[float, float]:
    """What part of all tissue lies in these finest tiles, and what part beyond the last whole one."""
    height, width = (side * tissue.l0_per_px for side in tissue.mask.shape)
    total = float(tissue.mask.sum()) * tissue.l0_per_px**2
    if total == 0:
        return 1.0, 0.0
    held = float(tissue.coverage(cell_boxes(cells, extent, origin)).sum()) * extent**2
    right, lower = origin[0] + whole[1] * extent, origin[1] + whole[0] * extent
    # What is not above and left of the last whole tile's corner; boxes without an area hold nothing.
    margins = [(right, 0, width - right, height), (0, lower, min(right, width), height - lower)]
    real = [box for box in margins if min(box[2:]) > 0]
    areas = np.array([box[2] * box[3] for box in real])
    beyond = float((tissue.coverage(real) * areas).sum()) if real else 0.0
    return held / total, beyond / total


def _finest_extent(mpp: float, spec: PyramidSpec, name: str) -> tuple[int, bool]:
    """Side of a finest tile in level-0 pixels, and whether the scan is too coarse for what was asked."""
    asked = spec.asked_mpps[-1]
    if abs(mpp - asked) <= spec.mpp_tolerance * asked + _EPSILON:
        return spec.tile_px, False
    if mpp > asked and not spec.allow_upsample:
        raise SlideError(
            f"{magnification_at(asked):g}x ({asked:g} um/px) asked, but the scan has {mpp:g} um/px, "
            f"about {magnification_at(mpp):.3g}x",
            where=name,
            hint="Ask for what it has, leave the slide out, or give `--allow-upsample`",
        )
    return max(1, round(spec.tile_px * asked / mpp)), mpp > asked


def _covered(
    shape: tuple[int, int], extent: int, origin: tuple[int, int], tissue: Tissue, least: float
) -> npt.NDArray[np.bool_]:
    cells = np.indices(shape).reshape(2, -1).T
    return (tissue.coverage(cell_boxes(cells, extent, origin)) >= least - _EPSILON).reshape(shape)


def _inside(
    shape: tuple[int, int], extent: int, origin: tuple[int, int], l0_size_px: tuple[int, int]
) -> npt.NDArray[np.bool_]:
    """Cells that end within the picture."""
    rows, columns = (origin[axis] + (np.arange(shape[1 - axis]) + 1) * extent <= l0_size_px[axis] for axis in (1, 0))
    return np.asarray(rows[:, None] & columns[None, :])


def _spread(coarse: npt.NDArray[np.bool_], ratio: int, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Each coarse cell's value for all cells it holds."""
    rows, columns = (np.arange(side) // ratio for side in shape)
    return np.asarray(coarse[rows[:, None], columns[None, :]])


def _gathered(fine: npt.NDArray[np.bool_], ratio: int, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Whether a coarse cell holds any true fine one."""
    found = np.zeros(shape, np.bool_)
    rows, columns = np.nonzero(fine)
    found[rows // ratio, columns // ratio] = True
    return found


def _parents(cells: Cells, coarse: npt.NDArray[np.bool_], ratio: int) -> Indices:
    index = np.cumsum(coarse).reshape(coarse.shape) - 1  # row-major number of each kept coarse cell
    rows, columns = (cells // ratio).T
    return np.asarray(index[rows, columns], np.int64)
