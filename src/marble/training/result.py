"""`FitResult`: what a fit hands over, whether it was trained step by step or solved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class FitResult:
    """The chosen weights, and how they were come by.

    Args:
        tensors: the state of the model that is kept.
        epochs, best_epoch: done, and chosen.
        history: one row per epoch.
        notes: for the run's record.
        seconds: spent on it.
        precision: of its forward passes.
    """

    tensors: dict[str, Tensor]
    epochs: int
    best_epoch: int
    history: list[dict[str, Any]]
    notes: list[str]
    seconds: float
    precision: str = "float32"
