"""What a cohort costs, from what one of its slides costs: bytes, reads, arithmetic, steps, hours, money.

Pure arithmetic. `marble plan` gives it what it measured on some of the user's own slides, and `docs/concepts/scale.md`
slides and machines that it states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HOUR_S = 3600.0
GIB = 2**30


@dataclass(frozen=True)
class SlideCost:
    """What one slide costs.

    Args:
        tiles: of all levels.
        reads: regions of the file that are decoded.
        slide_bytes: of the file.
        bag_bytes: of the bag.
        open_s: seconds of one core to open it and find its tissue.
        read_s: seconds of one core to decode all tiles.
        encode_s: seconds of one core, or of one GPU where workers have one, to encode them.
        flops: of the encoder on all tiles, a multiplication and an addition counted as two; 0 if not known.
    """

    tiles: float
    reads: float
    slide_bytes: float
    bag_bytes: float
    open_s: float
    read_s: float
    encode_s: float
    flops: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """The machines of an extraction, seen as workers that are all alike.

    Args:
        workers: that have a slide each, side by side.
        cores: of each worker.
        gpus: of each worker; a fraction where several share one.
        link: bytes a second from where the slides are to all workers together; None where that is not the limit.
    """

    workers: int = 1
    cores: float = 1.0
    gpus: float = 0.0
    link: float | None = None


@dataclass(frozen=True)
class Prices:
    """What is paid for, in any currency."""

    core_hour: float = 0.0
    gpu_hour: float = 0.0
    gib_month: float = 0.0


@dataclass(frozen=True)
class Training:
    """A cross-validation of one model: every fold trains on the other folds.

    Args:
        folds: fits.
        epochs: of each.
        step_s: seconds of one worker for a training step on one bag.
    """

    folds: int = 5
    epochs: int = 20
    step_s: float = 0.0

    def steps(self, slides: int) -> int:
        """Bags that are trained on, over all fits."""
        if self.folds < 2:
            return slides * self.epochs
        return round(slides * (self.folds - 1) / self.folds) * self.epochs * self.folds


@dataclass(frozen=True)
class Bill:
    """What so many slides cost a fleet.

    Args:
        slides: how many.
        tiles, reads, slide_bytes, bag_bytes, flops: of all of them.
        hours: of extraction by what is waited for: `cores`, `GPUs` and `link`; they work side by side, so the longest
            is the time it takes.
        steps: of training.
        training_hours: with as many fits side by side as there are workers.
        money: for the machines of both, and a month of the bags.
    """

    slides: int
    tiles: float
    reads: float
    slide_bytes: float
    bag_bytes: float
    flops: float
    hours: Mapping[str, float]
    steps: int
    training_hours: float
    money: float

    @property
    def bottleneck(self) -> str:
        """What the extraction waits for."""
        return max(self.hours, key=lambda name: self.hours[name])

    @property
    def extract_hours(self) -> float:
        return self.hours[self.bottleneck]


def bill(
    slide: SlideCost, slides: int, fleet: Fleet, training: Training | None = None, prices: Prices | None = None
) -> Bill:
    """What `slides` such slides cost; the last ones do not fill the fleet, so it works in whole rounds."""
    training, prices = training or Training(), prices or Prices()
    rounds = -(-slides // fleet.workers)  # each worker has a slide; one slide is never shared
    shared = slide.read_s + (0.0 if fleet.gpus else slide.encode_s)  # by all cores of a worker; it opens with one
    hours = {"cores": rounds * (slide.open_s + shared / fleet.cores) / HOUR_S}
    if fleet.gpus:
        hours["GPUs"] = rounds * slide.encode_s / fleet.gpus / HOUR_S
    if fleet.link is not None:
        hours["link"] = slides * slide.slide_bytes / fleet.link / HOUR_S
    steps = training.steps(slides)
    training_hours = steps * training.step_s / min(fleet.workers, training.folds) / HOUR_S
    an_hour = fleet.cores * prices.core_hour + fleet.gpus * prices.gpu_hour
    worker_hours = max(hours.values()) * min(fleet.workers, slides) + steps * training.step_s / HOUR_S
    return Bill(
        slides=slides,
        tiles=slides * slide.tiles,
        reads=slides * slide.reads,
        slide_bytes=slides * slide.slide_bytes,
        bag_bytes=slides * slide.bag_bytes,
        flops=slides * slide.flops,
        hours=hours,
        steps=steps,
        training_hours=training_hours,
        money=worker_hours * an_hour + slides * slide.bag_bytes / GIB * prices.gib_month,
    )
