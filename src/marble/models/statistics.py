"""Input statistics: mean and SD of the training slides' tokens, per level and feature, kept inside the model.

Tokens of one encoder share a large common vector, and a step along it moves all slides at once. A standardised model
sees (x - mean) / SD instead. The numbers are buffers, so they are saved, hashed and loaded with the weights. Where a
model begins with a linear map they are folded into it exactly: W (x - mean) / SD + b = (W / SD) x + (b - W mean / SD).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from marble.bags.augment import canonical
from marble.bags.bag import Bag
from marble.errors import BagError
from marble.models.late_buffers import LateBuffers

#: tokens converted to float64 at a time
CHUNK = 4096
#: a feature whose SD is a smaller share of its mean than this is constant but for rounding
CONSTANT = 1e-6
#: the least SD divided by, as a share of the level's typical one. Some features of an encoder are silent on nearly all
#: training tiles; divided by their own SD, the first new slide on which one speaks would be hundreds of SDs away, and
#: judged by that feature alone
LEAST = 0.01


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of what was added so far; memory does not grow."""

    mean: Tensor  # (D,) float64
    squares: Tensor  # (D,) float64
    count: int = 0

    @staticmethod
    def empty(dim: int) -> Moments:
        return Moments(torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64))

    def add(self, tokens: Tensor) -> None:
        """Merge tokens (T, D), chunk by chunk, each around its own mean: no difference of large squares."""
        for part in torch.split(tokens.detach(), CHUNK):
            x = part.double()
            mean = x.mean(dim=0)
            squares = (x - mean).square().sum(dim=0)
            total = self.count + len(x)
            apart = mean - self.mean
            self.squares += squares + apart.square() * (self.count * len(x) / total)
            self.mean += apart * (len(x) / total)
            self.count = total

    def scale(self) -> Tensor:
        """(D,) one over the SD, which counts as no less than `LEAST` of the level's; 1 if no feature ever changes."""
        variance = self.squares / max(1, self.count)
        sd = variance.sqrt()
        sd = sd.masked_fill(sd <= CONSTANT * self.mean.abs(), 0.0)
        typical = sd.square().mean().sqrt()
        return 1 / torch.where(typical > 0, sd.clamp(min=LEAST * typical), 1.0)


def measure(bags: Iterable[Bag]) -> list[Moments]:
    """One pass over the bags, level by level. Bags in one order give the same bits however their tiles are stored."""
    found: list[Moments] = []
    for bag in bags:
        if found and len(found) != bag.depth:
            raise BagError(f"the bag has {bag.depth} levels, the ones before it {len(found)}", where=bag.slide_id)
        found = found or [Moments.empty(level.dim) for level in bag.levels]
        for moments, level in zip(found, canonical(bag).levels, strict=True):
            if level.dim != len(moments.mean):
                wide = f"tokens are {level.dim} wide, those of the bags before it {len(moments.mean)}"
                raise BagError(wide, where=bag.slide_id)
            moments.add(level.features)
    return found


class InputStatistics(LateBuffers):
    """Standardises tokens by level, or leaves them as they are until statistics are set or loaded."""

    mean: Tensor | None  # (levels, D)
    scale: Tensor | None  # (levels, D), one over the SD

    def __init__(self) -> None:
        super().__init__("mean", "scale")

    @property
    def is_set(self) -> bool:
        return self.mean is not None

    def set(self, moments: list[Moments], like: Tensor) -> None:
        """Take over measured moments, in the dtype and on the device of `like`."""
        self.mean = torch.stack([one.mean for one in moments]).to(like)
        self.scale = torch.stack([one.scale() for one in moments]).to(like)

    def sds(self, levels: int) -> list[Tensor]:
        """The SD of every feature (D,) of each level; 1 where no statistics are set."""
        if self.scale is None:
            return [torch.ones(())] * levels
        return [1 / scale for scale in self.scale]

    def forward(self, tokens: Tensor, k: int, where: str) -> Tensor:
        """(T, D) tokens of level k, standardised."""
        if self.mean is None or self.scale is None:
            return tokens
        self._check(k, where)
        return (tokens - self.mean[k]) * self.scale[k]

    def fold(self, weight: Tensor, bias: Tensor | None, k: int, where: str) -> tuple[Tensor, Tensor | None]:
        """(W', b') with W' x + b' = W x~ + b for the standardised token x~ of a token x of level k."""
        if self.mean is None or self.scale is None:
            return weight, bias
        self._check(k, where)
        shift = -(weight @ (self.mean[k] * self.scale[k]))
        return weight * self.scale[k], shift if bias is None else bias + shift

    def _check(self, k: int, where: str) -> None:
        assert self.mean is not None
        if k >= len(self.mean):
            raise BagError(
                f"the model was standardised on bags of {len(self.mean)} levels and is asked for level {k}", where=where
            )
