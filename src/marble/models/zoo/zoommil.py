"""ZoomMIL (Thandiackal et al. 2022): attend coarsely, zoom into the k most interesting tiles, level by level.

    T_k  tiles of level k      K  tiles zoomed into      r  a child's place in its parent: ratio^2 of them
    choice (K, T_k)  soft or hard choice of tiles; each row sums to 1
    slot (j, r)      the r-th child of the j-th choice: the mix over tiles t of choice[j, t] * child(t, r)

Each level pools its slots by gated attention; the slide's vector is the sum over levels. The original needs complete
trees with children in contiguous rows. Here children are found by their cells, so any tree will do: a slot nobody
fills does not exist, a slot filled in part is divided by its share (held constant in the gradient), and a tile
without descendants at the finest level is never zoomed into. On a complete tree this is the original, and the cost
is that of the chosen tiles alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag, Level
from marble.errors import InputError
from marble.models.base import BagModel, Output
from marble.models.parts.attention import GatedAttention, token_embedding
from marble.models.parts.ranges import Count, Positive, Rate
from marble.models.parts.topk import hard_topk, perturbed_topk
from marble.models.parts.tree import ancestors, finest_levels, spread
from marble.models.recipe import Recipe

_NAMES = {"low": 0, "mid": 1, "high": 2}  # the original's three magnifications


def _reference_names() -> dict[str, str]:
    names = {"classify_head.": "head."}
    for word, k in _NAMES.items():
        names[f"fc_{word}_mag.0."] = f"scales.{k}.embed.0."
        for theirs, ours in (("ga", "attention"), ("aux_ga", "zoom")):
            for part, mine in (("attention_a.0.", "value."), ("attention_b.0.", "gate."), ("attention_c.", "score.")):
                names[f"{theirs}_{word}_mag.{part}"] = f"scales.{k}.{ours}.{mine}"
    return names


class ZoomMIL(BagModel):
    """Slide logits from a coarse-to-fine zoom.

    Args:
        dim: width of the tokens.
        outputs: number of logits.
        levels: how many of the bag's finest levels are read (1: no zoom, plain attention pooling).
        k: how many tiles are zoomed into at each level; all of them where there are fewer.
        hidden: width of the embedded tokens.
        attention_dim: width inside the gated attention.
        dropout: of the embedding and of the attention branches.
        samples: perturbations per choice in training.
        sigma: their size.
    """

    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=1e-4, weight_decay=0.0, schedule="plateau", gamma=0.8, plateau_patience=5, warmup=0,
        epochs=100, patience=100, clip=None, sampling="weighted", decay_exempt=False,
    )  # fmt: skip
    reference_names: ClassVar[Mapping[str, str]] = _reference_names()

    def __init__(
        self,
        dim: int,
        outputs: int,
        levels: Count = 3,
        k: Count = 12,
        hidden: Count = 512,
        attention_dim: Count = 256,
        dropout: Rate = 0.25,
        samples: Count = 100,
        sigma: Positive = 0.002,
    ) -> None:
        super().__init__(dim, outputs)
        if levels < 1 or k < 1 or samples < 1 or sigma <= 0:
            raise InputError(f"levels, k, samples and sigma must be positive, got {levels}, {k}, {samples} and {sigma}")
        self.levels, self.k, self.samples, self.sigma = levels, k, samples, sigma
        self.scales = nn.ModuleList(
            Scale(dim, hidden, attention_dim, dropout, zooms=index < levels - 1) for index in range(levels)
        )
        self.head = nn.Linear(hidden, outputs)

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        return tensors["fc_low_mag.0.weight"].shape[1], tensors["classify_head.weight"].shape[0]

    def levels_read(self, bag: Bag) -> tuple[Level, ...]:
        return finest_levels(bag, self.levels)

    def forward(self, bag: Bag) -> Output:
        levels = self.levels_read(bag)
        above = ancestors(levels)
        first = bag.depth - len(levels)
        features = self.cast(levels[0], bag, first)  # (T_0, D)
        slots = Slots.whole(features)
        vectors: list[Tensor] = []
        shares: list[Tensor] = []
        for k, scale in enumerate(self.scales):
            assert isinstance(scale, Scale)
            h = scale.embed(features)  # (S, hidden) one row per slot
            a = torch.softmax(scale.attention(h)[0], dim=0)  # (S,)
            vectors.append(a @ h)
            with torch.no_grad():
                shares.append(spread(slots.to_tiles(a), above[k]))
            if scale.zoom is not None:
                interest = torch.softmax(scale.zoom(h)[0], dim=0)  # (S,)
                fertile = torch.zeros(len(levels[k]), dtype=torch.bool, device=h.device)
                fertile[above[k]] = True  # tiles that lead to the finest level
                slots = slots.below(self._choose(interest, slots.holds(fertile)), levels[k + 1])
                features = slots.mix(self.cast(levels[k + 1].take(slots.tiles, None), bag, first + k + 1))
        embedding = torch.stack(vectors).sum(dim=0)  # (hidden,)
        attention = torch.stack(shares).mean(dim=0)
        return Output(self.head(embedding), embedding, attention / attention.sum(), bag.depth - 1)

    def _choose(self, interest: Tensor, allowed: Tensor) -> Tensor:
        """(K, S) the slots to zoom into, among those allowed (S,)."""
        index = allowed.nonzero()[:, 0]
        scores = interest[index]
        k = min(self.k, len(index))
        if self.training:
            noise = torch.randn(self.samples, len(index), dtype=scores.dtype, device=scores.device)
            chosen = perturbed_topk(scores, k, noise, self.sigma)
        else:
            chosen = hard_topk(scores, k)
        return chosen.new_zeros(k, len(interest)).index_copy(1, index, chosen)


class Scale(nn.Module):
    """What one magnification owns: embedding, pooling attention and, if it zooms, the attention that chooses."""

    def __init__(self, dim: int, hidden: int, attention_dim: int, dropout: float, zooms: bool) -> None:
        super().__init__()
        self.embed = token_embedding(dim, hidden, dropout=dropout)
        self.attention = GatedAttention(hidden, attention_dim, dropout=dropout)
        self.zoom = GatedAttention(hidden, attention_dim, dropout=dropout) if zooms else None


@dataclass(frozen=True)
class Slots:
    """The slots of one level: slot (j, r) mixes the r-th children of P parent tiles by weight[j]."""

    weight: Tensor  # (K, P) choice of parents
    tiles: Tensor  # (M,) the children of all P, as indices into this level
    child: Tensor  # (P, R) index into `tiles`; -1 where the parent has no such child
    total: int  # tiles of this level

    @classmethod
    def whole(cls, features: Tensor) -> Slots:
        """Every tile of the coarsest level, of these features (T, D), in a slot of its own: children of one root."""
        tiles = torch.arange(len(features), device=features.device)
        return cls(features.new_ones(1, 1), tiles, tiles[None], len(features))

    @cached_property
    def mass(self) -> Tensor:
        """(K, R) how much of each slot is filled; where 0, the slot does not exist."""
        return self.weight.detach() @ (self.child >= 0).to(self.weight.dtype)

    @cached_property
    def exists(self) -> Tensor:
        """(S,) flat index j * R + r of the slots that exist."""
        return (self.mass > 0).flatten().nonzero()[:, 0]

    @cached_property
    def filled(self) -> tuple[Tensor, ...]:
        """Parents p and places r of the children there are."""
        return (self.child >= 0).nonzero(as_tuple=True)

    def mix(self, tokens: Tensor) -> Tensor:
        """(M, D) features of `tiles` -> (S, D) features of the slots."""
        filled = (self.child >= 0)[..., None]
        children = torch.where(filled, tokens[self.child.clamp_min(0)], 0)  # (P, R, D)
        mixed = (self.weight @ children.flatten(1)).view(*self.mass.shape, -1)  # (K, R, D)
        return mixed.flatten(0, 1)[self.exists] / self.mass.flatten()[self.exists, None]

    def to_tiles(self, by_slot: Tensor) -> Tensor:
        """(..., S) amounts per slot -> (..., T) the same amounts handed on to the tiles that fill the slots."""
        lead = by_slot.shape[:-1]
        every = by_slot.new_zeros(*lead, self.mass.numel()).index_copy(-1, self.exists, by_slot)
        every = every.view(*lead, *self.mass.shape) / self.mass.clamp_min(torch.finfo(self.mass.dtype).tiny)
        by_child = torch.einsum("...kr,kp->...pr", every, self.weight)
        p, r = self.filled
        return by_slot.new_zeros(*lead, self.total).index_copy(-1, self.tiles[self.child[p, r]], by_child[..., p, r])

    def holds(self, wanted: Tensor) -> Tensor:
        """(S,) whether any tile where `wanted` (T,) is true fills the slot."""
        useful = (self.child >= 0) & wanted[self.tiles][self.child.clamp_min(0)]
        held = self.weight.detach() @ useful.to(self.weight.dtype)  # (K, R)
        return held.flatten()[self.exists] > 0

    def below(self, choice: Tensor, finer: Level) -> Slots:
        """The slots of the next finer level, under `choice` (K', S) of these slots."""
        by_tile = self.to_tiles(choice)  # (K', T)
        parents = (by_tile.detach() > 0).any(dim=0).nonzero()[:, 0]  # (P',)
        assert finer.parent is not None
        assert finer.ratio is not None
        column = torch.full((self.total,), -1, device=parents.device)
        column[parents] = torch.arange(len(parents), device=parents.device)
        tiles = (column[finer.parent] >= 0).nonzero()[:, 0]
        row, col = (finer.cells[tiles].to(torch.int64) % finer.ratio).unbind(dim=1)
        places, place = torch.unique(row * finer.ratio + col, return_inverse=True)  # only those that occur
        child = torch.full((len(parents), len(places)), -1, device=parents.device)
        child[column[finer.parent[tiles]], place] = torch.arange(len(tiles), device=parents.device)
        return Slots(by_tile[:, parents], tiles, child, len(finer))
