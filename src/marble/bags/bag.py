"""`Bag`: every level's tokens of one slide, with their cells and parents.

What holds for every bag that exists, because it is checked when one is made and when one is loaded:

* levels go from coarsest (k = 0) to finest; none is empty; all numbers are finite;
* a cell (row, col) occurs once in its level;
* `cells[k-1][parent] == cells[k] // ratio` with one integer ratio between neighbouring levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marble.bags.numbers import tensor_of
from marble.bags.provenance import MADE_UP_CELLS, Provenance
from marble.cells import MAX_RATIO, cell_boxes
from marble.devices import to_device
from marble.errors import BagError, NonFiniteError

FEATURE_DTYPES = (torch.float16, torch.float32, torch.float64)
NOMINAL_EXTENT_PX = 256  # of a finest tile in a bag that does not know its place on the slide


@dataclass(frozen=True, eq=False)
class Level:
    """The tokens of one magnification.

    Args:
        features: (T, D) float16, float32 or float64; a numpy array is taken as it is, without copying.
        cells: (T, 2) integer (row, col) in this level's lattice.
        parent: (T,) index into the next coarser level; None for the coarsest.
        ratio: how many of these cells lie side by side in one parent; found from the cells when not given.
    """

    features: Tensor
    cells: Tensor
    parent: Tensor | None = None
    ratio: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tensor_of(self.features, "features"))
        object.__setattr__(self, "cells", _whole_numbers(tensor_of(self.cells, "cells"), "cells").to(torch.int32))
        if self.parent is not None:
            object.__setattr__(
                self, "parent", _whole_numbers(tensor_of(self.parent, "parent"), "parent").to(torch.int64)
            )
        if self.ratio is not None and (type(self.ratio) is not int or not 1 <= self.ratio <= MAX_RATIO):
            raise BagError(f"ratio must be a whole number in 1 to {MAX_RATIO}, got {self.ratio!r}")

    def __len__(self) -> int:
        return int(self.features.shape[0])

    @property
    def dim(self) -> int:
        return int(self.features.shape[1])

    def take(self, index: Tensor, parent: Tensor | None) -> Level:
        """The tokens at `index` (T',), with their new parents."""
        return replace(self, features=self.features[index], cells=self.cells[index], parent=parent)


@dataclass(frozen=True, eq=False)
class Bag:
    """All levels of one slide, coarsest first.

    Args:
        slide_id: the slide's name; always a string.
        levels: one :class:`Level` per magnification, coarsest first.
        provenance: where the numbers come from.
        checked: set by code that derives a bag from a valid one and keeps the rules by construction.
    """

    slide_id: str
    levels: tuple[Level, ...]
    provenance: Provenance = field(default_factory=Provenance)
    checked: bool = field(default=False, repr=False)

    def __init__(
        self,
        slide_id: str,
        levels: Sequence[Level],
        provenance: Provenance | None = None,
        *,
        checked: bool = False,
    ) -> None:
        object.__setattr__(self, "slide_id", slide_id)
        if isinstance(levels, Level) or not all(isinstance(level, Level) for level in levels):
            hint = "Give [Level(features, cells), ...], coarsest first; `Bag.of_tokens` takes tokens without places"
            raise BagError("the levels of a bag are a list of `Level`", where=slide_id, hint=hint)
        object.__setattr__(self, "levels", tuple(levels))
        object.__setattr__(self, "provenance", provenance or Provenance())
        object.__setattr__(self, "checked", True)
        if not checked:
            object.__setattr__(self, "levels", _validated(slide_id, self.levels))

    @staticmethod
    def of_tokens(tokens: Tensor | npt.NDArray[Any], slide_id: str = "tokens") -> Bag:
        """A bag of one level from tokens (N, D) whose places nobody knows; their order stands in for them."""
        tokens = tensor_of(tokens, "tokens")
        if tokens.ndim != 2 or len(tokens) == 0:
            raise BagError(f"tokens must be (N, D) with N > 0, got {tuple(tokens.shape)}", where=slide_id)
        column = torch.arange(len(tokens))
        cells = torch.stack([torch.zeros_like(column), column], dim=1)  # (N, 2)
        return Bag(slide_id, [Level(tokens, cells)], Provenance(notes={MADE_UP_CELLS: "given without coordinates"}))

    @property
    def finest(self) -> Level:
        return self.levels[-1]

    @property
    def depth(self) -> int:
        """How many levels there are."""
        return len(self.levels)

    def with_levels(self, levels: Sequence[Level]) -> Bag:
        """This slide with other levels that are known to keep the rules."""
        return Bag(self.slide_id, levels, self.provenance, checked=True)

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Bag:
        """The same bag on another device or with features of another dtype."""
        there = self.device if device is None else torch.device(device)
        if there == self.device and dtype is None:
            return self
        return self.with_levels(
            [
                replace(
                    level,
                    features=to_device(level.features, there).to(dtype=dtype),
                    cells=to_device(level.cells, there),
                    parent=None if level.parent is None else to_device(level.parent, there),
                )
                for level in self.levels
            ]
        )

    @property
    def device(self) -> torch.device:
        """Where its tensors are; the CPU, but for a copy that somebody computes with."""
        return self.levels[0].features.device

    def ancestors(self, level: int) -> Tensor:
        """(T_finest,) index, in `level`, of each finest tile's ancestor."""
        index = torch.arange(len(self.finest), device=self.device)
        for k in range(self.depth - 1, level, -1):
            parent = self.levels[k].parent
            assert parent is not None
            index = parent[index]
        return index

    # ---- on the slide ------------------------------------------------------------------------------------------

    @property
    def is_placed(self) -> bool:
        """Whether the bag knows where on the slide its tiles lie."""
        return bool(self.provenance.levels) and self.provenance.l0_origin_px is not None

    @property
    def l0_origin_px(self) -> tuple[int, int]:
        """(x, y) of cell (0, 0)."""
        return (self.provenance.l0_origin_px or (0, 0)) if self.is_placed else (0, 0)

    def boxes(self, level: int) -> npt.NDArray[np.int64]:
        """(T, 4) a level's tiles in level-0 pixels; by cell alone, at a nominal size, if the bag knows no better."""
        pitch = self.pitch(level)
        extent = self.provenance.levels[level].l0_extent_px if self.is_placed else round(pitch)
        return cell_boxes(self.levels[level].cells.cpu().numpy(), extent, self.l0_origin_px, pitch)

    def pitch(self, level: int) -> float:
        """How far apart a level's cells lie, in level-0 pixels: whole cells fill one of the coarsest level's.

        Tiles of other tools may be a little wider or narrower (254 pixels where 4 fill 1014); counted in their own
        width, places would drift off over the slide.
        """
        if self.is_placed:
            return self.provenance.levels[0].l0_extent_px / self._side_by_side(0, level)
        return NOMINAL_EXTENT_PX * self._side_by_side(level, self.depth - 1)

    def _side_by_side(self, coarse: int, fine: int) -> int:
        """How many tiles of one level lie side by side in one of a coarser level."""
        return int(np.prod([level.ratio or 1 for level in self.levels[coarse + 1 : fine + 1]], dtype=np.int64))

    @property
    def l0_size_px(self) -> tuple[int, int]:
        """(width, height) of the slide; the hull of the tiles if the bag does not know it."""
        slide = self.provenance.slide
        if slide is not None and self.is_placed:
            return slide.l0_width_px, slide.l0_height_px
        hulls = [self.boxes(k) for k in range(self.depth)]
        far = np.max([(boxes[:, :2] + boxes[:, 2:]).max(axis=0) for boxes in hulls], axis=0)
        return int(far[0]), int(far[1])

    def __repr__(self) -> str:
        shape = ", ".join(f"{len(level)}x{level.dim}" for level in self.levels)
        return f"Bag({self.slide_id!r}, [{shape}])"


def _whole_numbers(values: Tensor, name: str) -> Tensor:
    """The same numbers, if they are whole and fit; a cell of 1.5 is a mistake, not cell 1."""
    # What cannot be wrong is not looked at: on an accelerator looking would make the host wait.
    if values.dtype == (torch.int64 if name == "parent" else torch.int32) or values.numel() == 0:
        return values
    if values.dtype.is_complex or values.dtype == torch.bool:
        raise BagError(f"{name} must be whole numbers, got {values.dtype}")
    limit = 2**31 if name == "cells" else 2**62
    fits = (values >= -limit) & (values < limit) & ((values == values.floor()) if values.is_floating_point() else True)
    if not bool(fits.all()):
        row = int((~fits).reshape(len(values), -1).any(dim=1).nonzero()[0]) if values.ndim else 0
        raise BagError(f"{name} must be whole numbers, got {values[row].tolist()} in row {row}")
    return values


def _validated(slide_id: str, levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """Check every rule; return the levels with their ratios filled in."""
    if not isinstance(slide_id, str) or not slide_id:
        raise BagError(f"slide_id must be a non-empty string, got {slide_id!r}")
    if not levels:
        raise BagError("a bag needs at least one level", where=slide_id)
    checked: list[Level] = []
    for k, level in enumerate(levels):
        where = f"{slide_id}, level {k}"
        _check_tokens(level, where)
        checked.append(_check_parents(level, checked[-1] if checked else None, where))
    return tuple(checked)


def _check_tokens(level: Level, where: str) -> None:
    features, cells = level.features, level.cells
    if features.ndim != 2 or features.dtype not in FEATURE_DTYPES:
        raise BagError(
            f"features must be (T, D) of float16, float32 or float64, got {tuple(features.shape)} {features.dtype}",
            where=where,
        )
    if features.shape[0] == 0 or features.shape[1] == 0:
        raise BagError("features are empty: a bag without tokens predicts nothing", where=where)
    if cells.shape != (features.shape[0], 2):
        raise BagError(f"cells must be ({features.shape[0]}, 2), got {tuple(cells.shape)}", where=where)
    # NaN is its own minimum, and infinity a minimum or a maximum: one pass, ten times as fast as asking every number.
    if not torch.isfinite(torch.stack(features.aminmax())).all():
        bad = (~torch.isfinite(features)).any(dim=1).nonzero()
        raise NonFiniteError(f"features hold NaN or infinity in row {int(bad[0])} ({len(bad)} rows)", where=where)
    keys = cell_keys(cells)
    if len(torch.unique(keys)) != len(keys):
        order = torch.sort(keys, stable=True).indices
        same = (keys[order][1:] == keys[order][:-1]).nonzero()[0]
        row, col = cells[order[same]].flatten().tolist()
        raise BagError(f"cell ({row}, {col}) occurs more than once", where=where)


def _check_parents(level: Level, above: Level | None, where: str) -> Level:
    if above is None:
        if level.parent is not None:
            raise BagError("the coarsest level has no parents, but 'parent' was given", where=where)
        return replace(level, ratio=None)
    parent = level.parent
    if parent is None:
        raise BagError("'parent' is missing: every level but the coarsest needs it", where=where)
    if parent.shape != (len(level),):
        raise BagError(f"parent must be ({len(level)},), got {tuple(parent.shape)}", where=where)
    if int(parent.min()) < 0 or int(parent.max()) >= len(above):
        row = int(((parent < 0) | (parent >= len(above))).nonzero()[0])
        raise BagError(
            f"parent {int(parent[row])} of row {row} is out of range; the level above has {len(above)} tiles",
            where=where,
        )
    above_cells = above.cells[parent]
    candidates = [level.ratio] if level.ratio is not None else _ratios(level.cells, above_cells)
    for ratio in candidates:
        if torch.equal(torch.div(level.cells, ratio, rounding_mode="floor"), above_cells):
            return replace(level, ratio=ratio)
    if level.ratio is not None:
        off = torch.div(level.cells, level.ratio, rounding_mode="floor") != above_cells
        row = int(off.any(dim=1).nonzero()[0])
        raise BagError(
            f"row {row}: cell {level.cells[row].tolist()} // {level.ratio} is not its parent's cell "
            f"{above_cells[row].tolist()}",
            where=where,
        )
    raise BagError(
        f"parents do not follow the cells: no integer ratio from 1 to {MAX_RATIO} fits cells // ratio == cells[parent]",
        where=where,
        hint="Both levels must lie on one nested lattice; `marble import` builds one from other tools' coordinates",
    )


def _ratios(cells: Tensor, above_cells: Tensor) -> list[int]:
    """Ratios worth trying: the one the largest coordinates point to first, so the usual bag is checked once."""
    fine, coarse = int(cells.abs().max()), int(above_cells.abs().max())
    guess = round(fine / coarse) if coarse else fine + 1
    return sorted(range(1, MAX_RATIO + 1), key=lambda ratio: (abs(ratio - guess), ratio))


def cell_keys(cells: Tensor) -> Tensor:
    """(T,) one int64 per cell whose order is row-major."""
    wide = cells.to(torch.int64)
    return wide[:, 0] * (1 << 32) + wide[:, 1]
