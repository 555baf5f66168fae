"""Several networks of one kind that were trained apart from each other: together they say the mean of what each says.

On few slides the seed decides much of what a network learns by heart, and networks of several seeds agree on the rest.
A linear term stands beside the mean of the networks once: it is the mean of those beside which they were trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag, Level
from marble.models.base import BagModel, Output
from marble.models.registry import build


class Committee(BagModel):
    """Networks with one voice: logits and attention are their means, the embedding their embeddings side by side.

    Args:
        members: alike but for their weights.
    """

    def __init__(self, members: Sequence[BagModel]) -> None:
        first = members[0]
        super().__init__(first.dim, first.outputs, first.level)
        self.members = nn.ModuleList(members)
        self.__dict__["order_sensitive"] = first.order_sensitive

    def each(self) -> Iterator[BagModel]:
        for member in self.members:
            assert isinstance(member, BagModel)
            yield member

    @property
    def first(self) -> BagModel:
        return next(self.each())

    @torch.no_grad()
    def join(self, share: float) -> None:
        """Take over the members' linear terms, with the share of the networks beside them, and their statistics."""
        terms = [member.linear_term for member in self.each()]
        weights = [term.weight for term in terms if term.weight is not None]
        biases = [term.bias for term in terms if term.bias is not None]
        if weights:
            self.linear_term.set(torch.stack(weights).mean(0), torch.stack(biases).mean(0), share, like=weights[0])
            for term in terms:
                term.weight = term.bias = term.share = None
        known = self.first.inputs
        if known.mean is not None and known.scale is not None:
            self.inputs.mean, self.inputs.scale = known.mean.clone(), known.scale.clone()

    def forward(self, bag: Bag) -> Output:
        said = [member.forward(bag) for member in self.each()]
        return Output(
            logits=_mean([one.logits for one in said]),
            embedding=torch.cat([one.embedding for one in said]),
            attention=_mean([one.attention for one in said]),
            level=said[0].level,
        )

    def levels_read(self, bag: Bag) -> tuple[Level, ...]:
        return self.first.levels_read(bag)

    def coarse_tokens(self, seen: Bag) -> Tensor:
        """(T, W) of all members, side by side."""
        return torch.cat([member.coarse_tokens(seen) for member in self.each()], dim=1)


def build_members(name: str, dim: int, outputs: int, options: Mapping[str, Any], members: int) -> BagModel:
    """One network as it is; of several, the committee."""
    networks = [build(name, dim, outputs, **options) for _ in range(members)]
    return networks[0] if members == 1 else Committee(networks)


def _mean(said: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(said)).mean(dim=0)
