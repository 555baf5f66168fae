"""The linear term: what a slide's mean tokens say by themselves, added to a model's logits and left alone by training.

    logits = model(bag) + W v + b        v (F,) the mean token of every level that the model reads, side by side

W and b are the probe's: a ridge regression of the training slides whose strength was chosen by cross-validation among
their patients (`training.linear_term`). A network beside it starts as that probe and learns what it leaves unexplained:
nearly nothing where a linear model of mean tokens fits the slides already, everything where it fits nothing. So few
slides, which a network alone would learn by heart, do not make it worse than the probe. Both are buffers: saved, hashed
and loaded with the weights, no part of weight decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from marble.bags.bag import Level


class LinearTerm(nn.Module):
    """W v + b, or nothing until it is set or loaded."""

    weight: Tensor | None  # (outputs, F)
    bias: Tensor | None  # (outputs,)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", None)
        self.register_buffer("bias", None)

    def set(self, weight: Tensor, bias: Tensor, like: Tensor) -> None:
        """Take over W (outputs, F) and b (outputs,), in the dtype and on the device of `like`."""
        self.weight, self.bias = weight.to(like), bias.to(like)

    def forward(self, levels: Sequence[Level]) -> Tensor | None:
        """(outputs,) of the levels that the model reads."""
        if self.weight is None or self.bias is None:
            return None
        return self.weight @ mean_tokens(levels, self.weight.dtype) + self.bias

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A file that holds a term brings it along, whatever this model held before."""
        for name in ("weight", "bias"):
            stored, like = state_dict.get(prefix + name), getattr(self, name)
            if stored is not None and (like is None or like.shape != stored.shape):
                setattr(self, name, torch.empty_like(stored))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def mean_tokens(levels: Sequence[Level], dtype: torch.dtype) -> Tensor:
    """V (F,), F the widths of all levels together. Sums are taken in the order of the tokens, so sort them before."""
    return torch.cat([level.features.mean(dim=0, dtype=dtype) for level in levels])
