"""Every model on a fake GPU: a training step, the same resumed, a prediction, explanations. Prints JSON.

LD_PRELOAD=fakecuda.so python -m tests.fake_cuda.job [MODEL ...]

A model is named as NAME, as NAME@TOKENS on a bag of another size, or with a deliberate mistake as NAME!item or
NAME!index; `encoder` is the feed of an encoder.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from marble.attribution.gradient import gradient_times_input
from marble.attribution.lifting import attention_by_level
from marble.attribution.occlusion import branch_occlusion
from marble.bags.bag import Bag, Level
from marble.models import MODELS, BagModel, build, model_options
from marble.models.inference import infer
from marble.tasks.classification import Classification
from marble.training.losses import LateLosses
from marble.training.optim import Optimizer
from marble.training.precision import Precision
from tests.fake_cuda.feeding import feed_an_encoder
from tests.fake_cuda.watching import Watch, placed, watched

#: fine tokens; a quarter as many coarse ones
MARBLE_TOKENS, TOKENS = 16384, 256
DIM = 1024
SLIDE = "slide"


def bag_of(fine: int, dim: int) -> Bag:
    """Two nested levels on a square grid."""
    side = int(fine**0.5)
    places = torch.arange(fine)
    cells = torch.stack([places // side, places % side], dim=1)
    coarse = torch.stack(torch.meshgrid(torch.arange(side // 2), torch.arange(side // 2), indexing="ij"), -1).view(
        -1, 2
    )
    parent = cells[:, 0] // 2 * (side // 2) + cells[:, 1] // 2
    rng = torch.Generator().manual_seed(0)
    features = [torch.randn(len(where), dim, generator=rng) for where in (coarse, cells)]
    return Bag(SLIDE, [Level(features[0], coarse), Level(features[1], cells, parent, ratio=2)])


def run(name: str, tokens: int | None, spoiled: Callable[[BagModel], None] | None = None) -> dict[str, Any]:
    """What each piece of work asked of the device, or the error it ended with."""
    marble = name == "marble"
    bag = bag_of(tokens or (MARBLE_TOKENS if marble else TOKENS), DIM if marble else 64)
    options = {"levels": 2} if "levels" in model_options(name) else {}
    model = build(name, DIM if marble else 64, 2, **options)
    if spoiled is not None:
        spoiled(model)
    small = bag_of(64, bag.finest.dim)
    task = Classification(("a", "b"))
    found: dict[str, Any] = {"tokens": len(bag.finest)}
    with watched() as watch:
        placed(model)
        criterion = task.criterion({SLIDE: "a"}, {SLIDE: "p"})
        state: dict[str, Tensor] = {}

        def step() -> None:
            precision = Precision(model.authors_recipe, model.device)
            optimizer = Optimizer(model, model.authors_recipe, mixed=precision.mixed)
            if state:
                optimizer.load_state(state)
            losses = LateLosses(1)
            moved = bag.to(model.device)
            watch.counts = type(watch.counts)()  # the copy of the bag is made by the thread that loads it
            out = precision.forward(model, moved)
            loss = criterion.loss(SLIDE, out.logits)
            for side in out.side:
                loss = loss + side.weight * criterion.loss(SLIDE, side.logits, side.name)
            extra = model.extra_loss(out, 0)
            loss = loss if extra is None else loss + extra
            torch.autograd.backward(optimizer.scaled(loss))
            losses.add(loss.detach(), SLIDE, 0)
            optimizer.step(1e-4)
            counts = watch.counts
            state.update({key: value.cpu() for key, value in optimizer.state().items()})
            watch.counts = counts

        def explain() -> None:
            score = task_score()
            drawn = [
                *attention_by_level(small, infer(model, small, 2)),
                *gradient_times_input(model, small, score),
                branch_occlusion(model, small, score),
            ]
            away = {str(values.device) for values in drawn if values.device.type != "cpu"}
            if away:  # heatmaps and the viewer draw them as arrays, which only the CPU has
                raise RuntimeError(f"values to be drawn are on {away}")

        model.train()
        pieces: dict[str, Callable[[], object]] = {
            "step": step,
            "resumed": step,
            "infer": lambda: infer(model, bag, 2),
            "explain": explain,
        }
        for piece, work in pieces.items():
            found[piece] = _watch(watch, work)
    return found


def task_score() -> Any:
    """The first logit, as a score to explain."""

    class First:
        def of(self, logits: Tensor) -> Tensor:
            return logits[..., 0]

    return First()


def _watch(watch: Watch, work: Callable[[], object]) -> dict[str, Any]:
    watch.counts = type(watch.counts)()
    try:
        result = work()
    except Exception as error:
        at = [f for f in traceback.extract_tb(error.__traceback__) if "/src/marble/" in f.filename]
        line = f"{at[-1].filename.split('/src/marble/')[1]}:{at[-1].lineno}" if at else "?"
        return {"error": f"{type(error).__name__} at {line}: {error}"}
    logits = getattr(result, "logits", None)
    if logits is not None and logits.device.type != "cpu":
        return {"error": f"the answer is on {logits.device}"}
    return watch.counts.record()


def spoil(model: BagModel, how: str) -> None:
    """A deliberate mistake: a value that is read in every forward pass, or a CPU index."""
    forward = type(model).forward

    def wrong(self: BagModel, bag: Bag) -> Any:
        if how == "item":
            float(bag.finest.features[0, 0])
        else:
            bag.finest.features[torch.zeros(3, dtype=torch.int64)]
        return forward(self, bag)

    model.__class__ = type(type(model).__name__, (type(model),), {"forward": wrong})


def main(asked: list[str]) -> None:
    """Run what is named; every model if nothing is."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name in asked or list(MODELS):
        if name == "encoder":
            found[name] = feed_an_encoder()
            continue
        model, _, mistake = name.partition("!")
        model, _, tokens = model.partition("@")
        spoiled = functools.partial(spoil, how=mistake) if mistake else None
        found[name] = run(model, int(tokens) if tokens else None, spoiled)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
