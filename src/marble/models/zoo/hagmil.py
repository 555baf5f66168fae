"""HAG-MIL (Xiong et al. 2023): one attention transformer (IAT) per level; coarse attention chooses where to look finer.

The coarsest level is read whole. Of each level, the `top` most attended tiles are kept and their children are read
next, in the order of their parents' attention. Levels share nothing: no gradient and no features cross them, and only
the finest level's logits are the prediction. Every coarser level learns from the same label by a loss of its own
(`Output.side`), to know where to look.

The original needs complete quadtrees; here children are found by the parent index, and tiles without descendants at
the finest level are not kept. The authors step Adam after each level's backward pass, which equals one step after all
of them, since no gradient crosses levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag, Level, cell_keys
from marble.errors import InputError
from marble.models.base import BagModel, Output, Side
from marble.models.parts.attention import GatedAttention, token_embedding
from marble.models.parts.nystrom import NystromAttention
from marble.models.parts.ranges import Count, Rate
from marble.models.parts.tree import ancestors, finest_levels
from marble.models.recipe import Recipe
from marble.models.zoo.clam import smooth_top1_svm

#: weight of the residual path, fixed by the authors' initialisation scheme for a depth of 8
OMEGA = sqrt(9 / log(9) - 1)
_MAX_LEVELS, _MAX_BLOCKS = 4, 8  # of checkpoints that can be renamed


def _reference_names() -> dict[str, str]:
    parts = {
        "fc.": "embed.",
        "layer.norm.": "attention_norm.",
        "layer.attn.to_qkv.": "attention.qkv.",
        "layer.attn.to_out.0.": "attention.out.",
        "layer.attn.res_conv.": "attention.conv.",
        "layer.residual_attn.": "",
        "norm.": "norm.",
        "attention_net.0.": "score_embed.0.",
        "attention_net.3.attention_a.0.": "score.value.",
        "attention_net.3.attention_b.0.": "score.gate.",
        "attention_net.3.attention_c.": "score.score.",
        "attention_net.3.module.0.": "score.value.",  # ungated
        "attention_net.3.module.3.": "score.score.",
        "layer_map_to_final.": "to_slide.",
    }
    names: dict[str, str] = {}
    sources = [("", 0), *((f"model{i}.", i) for i in range(_MAX_LEVELS))]  # one level alone, or all of them
    for prefix, i in sources:
        names[f"{prefix}weights."] = f"iats.{i}.mix."
        names[f"{prefix}fc5."] = f"iats.{i}.head."
        names[f"{prefix}instance_classifiers."] = f"iats.{i}.instance_classifiers."
        for block in range(_MAX_BLOCKS):
            for theirs, ours in parts.items():
                names[f"{prefix}layers.{block}.{theirs}"] = f"iats.{i}.blocks.{block}.{ours}"
    return names


class HAGMIL(BagModel):
    """Slide logits from the finest level, looked at where coarser levels point to.

    Args:
        dim: width of the tokens.
        outputs: number of logits.
        levels: how many of the bag's finest levels are read.
        widths: of the blocks of each level's IAT; the last is the slide vector's.
        attention_dims: widths of the embedding before the pooling attention, and inside it.
        gated: tanh branch times sigmoid branch, or the tanh branch alone.
        top: how many tiles are kept per level in training.
        top_eval: the same in evaluation.
        dropout: around the pooling attention.
        nystrom_dropout: after the Nystrom attention.
        k_sample: tiles taken from either end of the attention for the instance loss.
        subtyping: classes exclude each other: the top tiles are negatives for every other class.
        bag_weight: share of the bag loss in each level's loss; the rest is the instance loss.
    """

    output_per_class: ClassVar[bool] = True
    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=1e-5, weight_decay=1e-5, schedule="constant", warmup=0, epochs=200, patience=20,
        select_by="loss", clip=None, side_label_smoothing=0.1, sampling="fixed", decay_exempt=False,
    )  # fmt: skip
    # The original counts levels from the finest, and so does `iats`.
    reference_names: ClassVar[Mapping[str, str]] = _reference_names()
    reference_ignored: ClassVar[tuple[str, ...]] = (
        "instance_loss_fn.",
        *(f"model{i}.instance_loss_fn." for i in range(_MAX_LEVELS)),
    )

    def __init__(
        self,
        dim: int,
        outputs: int,
        levels: Count = 2,
        widths: Sequence[Count] = (1024, 1536, 512, 1024),
        attention_dims: Sequence[Count] = (512, 256),
        gated: bool = True,
        top: Count = 7000,
        top_eval: Count = 10000,
        dropout: Rate = 0.25,
        nystrom_dropout: Rate = 0.3,
        k_sample: Count = 8,
        subtyping: bool = False,
        bag_weight: float = 0.5,
    ) -> None:
        super().__init__(dim, outputs)
        if levels < 1 or not widths or len(attention_dims) != 2:
            raise InputError(
                f"levels must be positive, widths not empty and attention_dims two numbers, got {levels}, "
                f"{tuple(widths)} and {tuple(attention_dims)}"
            )
        if min(top, top_eval, k_sample) < 1 or not 0 <= bag_weight <= 1:
            raise InputError(
                f"top, top_eval and k_sample must be positive and bag_weight in [0, 1], got {top}, {top_eval}, "
                f"{k_sample} and {bag_weight}"
            )
        self.levels, self.top, self.top_eval, self.bag_weight = levels, top, top_eval, bag_weight
        self.iats = nn.ModuleList(
            IAT(dim, outputs, widths, attention_dims, gated, dropout, nystrom_dropout, k_sample, subtyping)
            for _ in range(levels)
        )

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        prefix = "model0." if "model0.fc5.weight" in tensors else ""
        return tensors[f"{prefix}layers.0.fc.0.weight"].shape[1], tensors[f"{prefix}fc5.weight"].shape[0]

    def levels_read(self, bag: Bag) -> tuple[Level, ...]:
        return finest_levels(bag, self.levels)

    def forward(self, bag: Bag) -> Output:
        levels = self.levels_read(bag)
        above = ancestors(levels)
        order = torch.argsort(cell_keys(levels[0].cells))  # the tiles read, in the order they are read
        views: list[IATView] = []
        for k, level in enumerate(levels):
            iat = self.iats[self.levels - 1 - k]
            views.append(iat(self.cast(level.take(order, None), bag, bag.depth - len(levels) + k)))
            if k < self.levels - 1:
                fertile = torch.zeros(len(level), dtype=torch.bool, device=order.device)
                fertile[above[k]] = True
                kept = self._most_attended(views[-1].scores, fertile[order])
                order = children(order[kept], len(level), levels[k + 1])
        finest = views[-1]
        attention = finest.attention.new_zeros(len(levels[-1])).index_copy(0, order, finest.attention)
        sides = tuple(Side(f"level{k}", view.logits, self.bag_weight) for k, view in enumerate(views[:-1]))
        hidden = {}
        for i, view in enumerate(reversed(views)):
            hidden[f"tokens{i}"], hidden[f"attention{i}"] = view.tokens, view.attention
        return Output(finest.logits, finest.embedding, attention, bag.depth - 1, sides, self.bag_weight, hidden)

    def extra_loss(self, out: Output, label: int) -> Tensor | None:
        losses = []
        for i, iat in enumerate(self.iats):
            assert isinstance(iat, IAT)
            losses.append(iat.instance_loss(out.hidden[f"tokens{i}"], out.hidden[f"attention{i}"], label))
        return (1 - self.bag_weight) * torch.stack(losses).sum()

    def _most_attended(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Places of the kept tiles, most attended first."""
        places = allowed.nonzero()[:, 0]
        count = min(self.top if self.training else self.top_eval, len(places))
        return places[scores.detach()[places].topk(count).indices]


def children(parents: Tensor, total: int, finer: Level) -> Tensor:
    """Tiles of `finer` below `parents` (of `total` tiles), in the parents' order, siblings row by row."""
    assert finer.parent is not None
    rank = torch.full((total,), -1, device=parents.device)
    rank[parents] = torch.arange(len(parents), device=parents.device)
    tiles = (rank[finer.parent] >= 0).nonzero()[:, 0]
    tiles = tiles[torch.argsort(cell_keys(finer.cells[tiles]))]
    return tiles[torch.argsort(rank[finer.parent[tiles]], stable=True)]


@dataclass(frozen=True)
class IATView:
    """What one level's IAT says about n tokens."""

    logits: Tensor  # (outputs,)
    embedding: Tensor  # (widths[-1],)
    scores: Tensor  # (n,) raw attention of the last block
    attention: Tensor  # (n,) its softmax
    tokens: Tensor  # (n, attention_dims[0]) what the last block's attention looked at


class IAT(nn.Module):
    """Integrated attention transformer: every block pools its own bag vector; the slide is a learned mix of them."""

    def __init__(
        self,
        dim: int,
        outputs: int,
        widths: Sequence[int],
        attention_dims: Sequence[int],
        gated: bool,
        dropout: float,
        nystrom_dropout: float,
        k_sample: int,
        subtyping: bool,
    ) -> None:
        super().__init__()
        self.k_sample, self.subtyping = k_sample, subtyping
        self.blocks = nn.ModuleList(
            IATBlock(before, width, widths[-1], attention_dims, gated, dropout, nystrom_dropout)
            for before, width in zip((dim, *widths), widths, strict=False)
        )
        self.mix = nn.Linear(len(widths), 1)
        self.head = nn.Linear(widths[-1], outputs)
        self.instance_classifiers = nn.ModuleList(nn.Linear(attention_dims[0], 2) for _ in range(outputs))

    def forward(self, x: Tensor) -> IATView:
        vectors: list[Tensor] = []
        tokens = scores = x
        for block in self.blocks:
            x, vector, tokens, scores = block(x)
            vectors.append(vector)
        slide = self.mix(torch.stack(vectors, dim=1))[:, 0]  # (widths[-1],)
        return IATView(self.head(slide), slide, scores, torch.softmax(scores, dim=0), tokens)

    def instance_loss(self, tokens: Tensor, attention: Tensor, label: int) -> Tensor:
        """CLAM's clustering loss on what the last block attended to; a bag of fewer tiles gives all to both ends."""
        k = min(self.k_sample, len(tokens))
        top, bottom = attention.topk(k).indices, (-attention).topk(k).indices
        ones = torch.ones(k, dtype=torch.long, device=tokens.device)
        targets = torch.cat([ones, torch.zeros_like(ones)])
        logits = self.instance_classifiers[label](tokens[torch.cat([top, bottom])])  # (2 k, 2)
        losses = [smooth_top1_svm(logits, targets)]
        if self.subtyping:
            others = (net for c, net in enumerate(self.instance_classifiers) if c != label)
            losses += [smooth_top1_svm(net(tokens[top]), torch.zeros_like(ones)) for net in others]
        return torch.stack(losses).mean()


class IATBlock(nn.Module):
    """Embed, attend among the tokens, pool by (gated) attention."""

    omega: Tensor

    def __init__(
        self,
        dim: int,
        width: int,
        slide_dim: int,
        attention_dims: Sequence[int],
        gated: bool,
        dropout: float,
        nystrom_dropout: float,
    ) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(dim, width), nn.LayerNorm(width), nn.GELU())
        self.attention_norm = nn.LayerNorm(width)
        self.attention = NystromAttention(width, landmarks=width // 2, dropout=nystrom_dropout)
        self.register_buffer("omega", torch.tensor([OMEGA]))
        self.norm = nn.LayerNorm(width)
        self.score_embed = token_embedding(width, attention_dims[0], act="gelu", dropout=dropout)
        self.score = GatedAttention(attention_dims[0], attention_dims[1], gated=gated, dropout=dropout)
        self.to_slide = nn.Sequential(nn.Linear(width, slide_dim), nn.LayerNorm(slide_dim), nn.GELU())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(n, dim) -> tokens (n, width), bag vector (slide_dim,), attended tokens (n, .), raw attention (n,)."""
        x = self.embed(x)
        x = self.omega * x + self.attention(self.attention_norm(x))
        tokens = self.score_embed(self.norm(x))
        scores = self.score(tokens)[0]
        pooled = torch.softmax(scores, dim=0) @ x  # (width,)
        return x, self.to_slide(self.norm(pooled)), tokens, scores
