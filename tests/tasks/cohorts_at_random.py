"""Random survival data that is hard on purpose: tied times, tied risks, few events, few patients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marble.tasks.metric import Bools, Floats


@dataclass(frozen=True)
class Cohort:
    risk: Floats
    time: Floats
    event: Bools

    @property
    def structured(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """As scikit-survival wants it."""
        return np.array(list(zip(self.event, self.time, strict=True)), dtype=[("event", "?"), ("time", "<f8")])

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.from_numpy(self.risk), torch.from_numpy(self.time), torch.from_numpy(self.event)


def cohorts(count: int, seed: int, least: int = 2, most: int = 40) -> Iterator[Cohort]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = int(rng.integers(least, most + 1))
        steps = rng.choice([3, 10, 1000])  # how many distinct times there are: heavy ties to none
        time = rng.integers(1, steps + 1, n).astype(np.float64)
        event = rng.random(n) < rng.choice([0.05, 0.2, 0.5, 0.9, 1.0])
        risk = rng.normal(size=n) * rng.choice([1e-9, 1.0, 100.0])
        if rng.random() < 0.5:
            risk = np.round(rng.normal(size=n))  # heavy ties
        yield Cohort(risk, time, event)
