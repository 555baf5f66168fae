"""The probe: a linear model of a slide's mean features; and `tiles`: one of its number of tiles alone.

What any study must beat before it claims that a network learned something. Both are solved, not trained step by step:
a ridge regression (logistic, Cox or linear) whose strength is chosen by cross-validation inside the training
patients (`training.closed_form`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag
from marble.errors import BagError, InputError
from marble.models.base import BagModel, Output
from marble.models.parts.ranges import Count


class ClosedForm(BagModel):
    """logits = W (v - center) * scale + b, for a vector v of F numbers that describes the slide.

    There is no attention in such a model: every tile of the level shown gets the same share.
    """

    center: Tensor  # (F,) mean of v over the training slides
    scale: Tensor  # (F,) one over its SD

    def __init__(self, dim: int, outputs: int, level: int, features: int) -> None:
        super().__init__(dim, outputs, level)
        self.register_buffer("center", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.head = nn.Linear(
            features, outputs, bias=outputs > 1
        )  # neither a Cox risk nor a standardised number needs an intercept

    def describe(self, bag: Bag) -> Tensor:
        """V (F,) of one slide."""
        raise NotImplementedError

    def forward(self, bag: Bag) -> Output:
        v = (self.describe(bag) - self.center) * self.scale
        shown = self.level_of(bag)
        tiles = len(bag.levels[shown])
        return Output(logits=self.head(v), embedding=v, attention=v.new_full((tiles,), 1 / tiles), level=shown)

    @torch.no_grad()
    def set_solution(self, center: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Take over center (F,), scale (F,), weight (outputs, F) and bias (outputs,)."""
        self.center.copy_(center)
        self.scale.copy_(scale)
        self.head.weight.copy_(weight)
        if self.head.bias is not None:
            self.head.bias.copy_(bias)


class Probe(ClosedForm):
    """v = the mean token of every level, side by side.

    Args:
        levels: how many levels the bags have; with 1, only `level` of each bag is read.
        level: the one to read when `levels` is 1; counted from the finest if negative.
    """

    def __init__(self, dim: int, outputs: int, levels: Count = 2, level: int = -1) -> None:
        if levels < 1:
            raise InputError(f"levels must be at least 1, got {levels}", where="model 'probe'")
        if levels > 1 and level != -1:
            both = f"level={level} picks the one level to read, but levels={levels}"
            raise InputError(both, where="model 'probe'", hint="Set levels=1")
        super().__init__(dim, outputs, level, features=levels * dim)
        self.levels = levels

    def describe(self, bag: Bag) -> Tensor:
        if self.levels == 1:
            return self.tokens(bag).mean(dim=0)
        if bag.depth != self.levels:
            raise BagError(
                f"the bag has {bag.depth} levels, the model was built for {self.levels}",
                where=bag.slide_id,
                hint="Build the model with as many levels, or with levels=1 and level= the one to read",
            )
        return torch.cat([self.cast(level, bag, k).mean(dim=0) for k, level in enumerate(bag.levels)])


class TileCount(ClosedForm):
    """v = the logarithm of the number of tiles of one level: how much tissue there is, and nothing of what it shows."""

    def __init__(self, dim: int, outputs: int, level: int = -1) -> None:
        super().__init__(dim, outputs, level, features=1)

    def describe(self, bag: Bag) -> Tensor:
        level = self.pick(bag)
        self.check_width(level, bag)
        return self.center.new_tensor([math.log(len(level))])
