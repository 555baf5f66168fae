"""Averaged weights: a moving mean of the weights over the steps, which is what is validated and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from marble.models import BagModel


class WeightAverage:
    """mean += (1 - d) (weights - mean) after every step.

    d is `decay`, or (1 + n) / (10 + n) in the first steps n, so that the untrained weights are soon forgotten.
    """

    def __init__(self, model: BagModel, decay: float) -> None:
        self.model, self.decay, self.steps = model, decay, 0
        self.mean = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def after_step(self) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, weight in self.model.named_parameters():
            self.mean[name].lerp_(weight, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the averaged weights, for as long as the block lasts."""
        weights = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        self._put(self.mean)
        try:
            yield
        finally:
            self._put(weights)

    def state(self) -> dict[str, Tensor]:
        return {"steps": torch.tensor(self.steps), **{f"mean.{name}": mean for name, mean in self.mean.items()}}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        self.mean = {name: mean.to(self.model.device) for name, mean in self.mean_of(state).items()}

    @staticmethod
    def mean_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The averaged weights in a saved state."""
        return {key.removeprefix("mean."): mean.clone() for key, mean in state.items() if key != "steps"}

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])
