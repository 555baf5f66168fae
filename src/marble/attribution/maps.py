"""An explanation as maps of tiles on the slide, made from the very bag of the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from marble.attribution.gradient import gradient_times_input
from marble.attribution.lifting import attention_by_level
from marble.attribution.occlusion import OnTile, branch_occlusion
from marble.attribution.scores import score_of
from marble.attribution.tile_map import TileMap
from marble.bags.bag import Bag
from marble.errors import InputError
from marble.models.base import BagOrTokens, bag_of
from marble.prediction import Answer, Predictor
from marble.specs import unknown_choice
from marble.surroundings import plain_torch
from marble.training.run_folder import RunFolder

Mode = Literal["attention", "occlusion", "gradient"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a run says about a slide, and one map per level; `target` is the class or risk the maps are about."""

    answer: Answer
    mode: Mode
    target: str | None
    maps: tuple[TileMap, ...]


class Opened(Protocol):
    """A run that is open, as `marble.Run` is."""

    @property
    def predictor(self) -> Predictor: ...


@plain_torch()
def explain(
    run: Predictor | Opened | RunFolder | str | Path,
    bag: BagOrTokens,
    mode: str = "attention",
    target: str | None = None,
    *,
    level: int = 0,
    on_tile: OnTile | None = None,
) -> Explanation:
    """Predict, and say why: a `Run`, its folder or a `Predictor` about a bag, or about tokens (N, D).

    `attention` and `gradient` give a map for every level the model reads or that holds what it reads; `occlusion`
    costs one prediction per tile (`on_tile` hears of each) and gives the map of `level` alone. `target` is the
    predicted class unless named.
    """
    if mode not in MODES:
        raise InputError(unknown_choice("mode", mode, list(MODES)))
    predictor, bag = _predictor(run), bag_of(bag)
    if isinstance(level, bool) or not isinstance(level, int):
        raise InputError(f"a level is a whole number, 0 the coarsest, got {level!r}")
    if target is not None:
        target = str(target)  # a class that is a number in a notebook
        score_of(predictor.task, target)  # there is such a class, or it says so, whatever the mode
    answer = predictor.answer(bag)
    if mode == "attention":
        values = dict(enumerate(attention_by_level(bag, answer.prediction)))
        return Explanation(answer, "attention", None, tile_maps(bag, "attention", values, signed=False))
    target = target or answer.label
    score = score_of(predictor.task, target)
    if mode == "gradient":
        values = dict(enumerate(gradient_times_input(predictor.model, bag, score)))
        return Explanation(answer, "gradient", target, tile_maps(bag, "gradient x input", values, signed=True))
    if not 0 <= level < bag.depth:
        raise InputError(f"the bag has levels 0 to {bag.depth - 1}, not {level}", where=bag.slide_id)
    values = {level: branch_occlusion(predictor.model, bag, score, level=level, on_tile=on_tile)}
    return Explanation(answer, "occlusion", target, tile_maps(bag, "branch occlusion", values, signed=True))


def _predictor(run: Any) -> Predictor:
    if isinstance(run, str | Path | RunFolder):
        return Predictor(run)
    found = run if isinstance(run, Predictor) else getattr(run, "predictor", None)
    if not isinstance(found, Predictor):
        hint = "A model by itself has attention in its output: `model(bag).attention`"
        raise InputError(f"a run, its folder or a Predictor is explained, got {type(run).__name__}", hint=hint)
    return found


def tile_maps(bag: Bag, name: str, values: dict[int, Tensor], *, signed: bool) -> tuple[TileMap, ...]:
    """Values (T_k,) by level, laid out on the slide."""
    geometry = bag.provenance.levels
    return tuple(
        TileMap(
            name=name,
            level=k,
            magnification=geometry[k].magnification if geometry else None,
            cells=bag.levels[k].cells.numpy(),
            l0_boxes=bag.boxes(k),
            parent=_array(bag.levels[k].parent),
            values=level_values.numpy(),
            signed=signed,
        )
        for k, level_values in sorted(values.items())
    )


def _array(parent: Tensor | None) -> NDArray[np.int64] | None:
    return None if parent is None else parent.numpy()
