"""The linear term: what a slide's mean tokens say by themselves, added to a model's logits and left alone by training.

    logits = share * network(bag) + W v + b    v (F,) the mean token of every level that the model reads, side by side

W and b are the probe's: a ridge regression of the training slides whose strength was chosen by cross-validation among
their patients (`training.closed_form`). A network beside it starts as that probe and learns what it leaves unexplained:
nearly nothing where a linear model of mean tokens fits the slides already, everything where it fits nothing. Training
takes the network whole; a prediction takes the share of it that helped patients whom inner fits had left out
(`training.share`): nothing of what was only learned by heart. All three are buffers: saved, hashed and loaded with the
weights, no part of weight decay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marble.bags.bag import Level
from marble.models.late_buffers import LateBuffers


class LinearTerm(LateBuffers):
    """W v + b and the share of the network beside it, or nothing until they are set or loaded."""

    weight: Tensor | None  # (outputs, F)
    bias: Tensor | None  # (outputs,)
    share: Tensor | None  # (), 0 to 1

    def __init__(self) -> None:
        super().__init__("weight", "bias", "share")

    @property
    def is_set(self) -> bool:
        return self.weight is not None

    def set(self, weight: Tensor, bias: Tensor, share: float, like: Tensor) -> None:
        """Take over W (outputs, F), b (outputs,) and the share, in the dtype and on the device of `like`."""
        self.weight, self.bias, self.share = weight.to(like), bias.to(like), torch.tensor(share).to(like)

    def forward(self, network: Tensor, levels: Sequence[Level]) -> Tensor:
        """(outputs,) of the network's logits (outputs,) and the levels that it reads; in training, of all it says."""
        assert self.weight is not None
        assert self.bias is not None
        assert self.share is not None
        with torch.autocast(network.device.type, enabled=False):  # a small difference of large sums
            term = self.weight @ mean_tokens(levels, self.weight.dtype) + self.bias
        return (network if self.training else self.share * network) + term


def mean_tokens(levels: Sequence[Level], dtype: torch.dtype) -> Tensor:
    """V (F,), F the widths of all levels together. Sums are taken in the order of the tokens, so sort them before."""
    return torch.cat([level.features.mean(dim=0, dtype=dtype) for level in levels])
