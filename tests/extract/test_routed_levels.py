"""One to four levels, from the slide file: routing reads what it keeps and no more, and chooses as from the bag."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from marble.bags.bag import Bag
from marble.extract import extract_slide
from marble.extract.slide import store_for
from marble.models import build
from marble.models.base import BagModel
from marble.models.inference import infer
from marble.models.routing import Router, routed
from marble.slides.slide import Slide
from marble.synthetic.slides import write_slide
from marble.training.routing import Routing
from tests.extract.making import spec_of

MAGNIFICATIONS = (2.5, 5.0, 10.0, 20.0)
TILE_PX = 64
SLIDE_MPP = 0.5  # 20x


@dataclass(frozen=True)
class Untrained:
    """A router that knows nothing, as extraction takes it: which branches it keeps does not matter here."""

    routing: Routing

    def identity(self) -> dict[str, Any]:
        return {"budget": self.routing.budget}

    def keep(self, seen: Bag, below: NDArray[np.int64], total: int, depth: int) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = self.routing.keep(seen, torch.from_numpy(below), total, depth).numpy()
        return kept


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slide") / "S.tiff"
    write_slide(path, (2048, 1536), mpp=SLIDE_MPP, seed=3, pieces=1)
    return path


@pytest.fixture
def read_px(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Magnification of the picture (as level-0 pixels per pixel) -> pixels that the slide was asked for."""
    asked: Counter[int] = Counter()
    real = Slide.read

    def read(self: Slide, l0_box: Any, out_px: Any, *rest: Any, **more: Any) -> Any:
        asked[round(l0_box[2] / out_px[0])] += int(out_px[0]) * int(out_px[1])
        return real(self, l0_box, out_px, *rest, **more)

    monkeypatch.setattr("marble.extract.regions.Slide.read", read)
    return asked


def _extract(slide: Path, folder: Path, levels: int, chooser: Untrained | None = None) -> Bag:
    spec = spec_of(*MAGNIFICATIONS[-levels:], tile_px=TILE_PX)
    record = extract_slide(slide, spec, folder, chooser=chooser)
    assert record.status == "ok", record.reason
    return store_for(folder, spec, chooser).load("S")


def _model(bag: Bag) -> BagModel:
    torch.manual_seed(0)
    return build("marble", bag.finest.features.shape[1], 2, levels=bag.depth, d_state=8).eval()


@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("budget", [0.25, 1.0])
def test_only_what_is_kept_is_read(
    slide: Path, tmp_path: Path, read_px: Counter[int], levels: int, budget: float
) -> None:
    whole = _extract(slide, tmp_path, levels)
    model = _model(whole)
    routing = Routing(model, Router(whole.finest.features.shape[1], levels), budget, {})
    read_px.clear()
    kept = _extract(slide, tmp_path, levels, Untrained(routing))

    again = routed(whole, budget, routing.router.scorer(model))  # the same choice, from the bag of everything
    for one, other in zip(kept.levels, again.levels, strict=True):
        assert torch.equal(one.cells, other.cells)
        assert torch.equal(one.features, other.features)
    first, second = infer(model, kept, 2), infer(model, routing.prune(whole), 2)
    assert torch.equal(first.logits, second.logits)
    if budget == 1:
        assert torch.equal(first.logits, infer(model, whole, 2).logits)  # bit by bit the unrouted model
    else:
        assert len(kept.finest) <= 0.25 * len(whole.finest)

    # a level is read below the tiles that were kept of the one above it, and nowhere else
    for k in range(1, levels):
        zoom = 2 ** (levels - 1 - k)
        chosen = {tuple(cell) for cell in kept.levels[k - 1].cells.tolist()}
        below = sum((row // 2, column // 2) in chosen for row, column in whole.levels[k].cells.tolist())
        assert read_px[zoom] == below * TILE_PX**2, f"level {k}"


def test_one_level_leaves_nothing_to_choose(slide: Path, tmp_path: Path) -> None:
    bag = _extract(slide, tmp_path, 1)
    for budget in (0.25, 1.0):
        rest = routed(bag, budget, lambda _seen: pytest.fail("there is no coarser level to score"))
        assert torch.equal(infer(_model(bag), rest, 2).logits, infer(_model(bag), bag, 2).logits)
