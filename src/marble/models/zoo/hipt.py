"""HIPT's aggregators (Chen et al. 2022): tiles -> regions -> slide.

* `none_fc`: gated-attention pooling twice, on any features. A region is the tile's parent tile; at the coarsest level,
  a square of 16 x 16 cells.
* `lgp_fc`: ViT-4K over the 16 x 16 tiles of each region, a transformer over the regions, gated-attention pooling. Made
  for 384-d features of ViT-256, for which pretrained ViT-4K weights exist. Tiles that were not kept are zero vectors;
  the original embeds background tiles too.

T tiles, R regions; `region` (T,) is the region of each tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag, Level, cell_keys
from marble.errors import InputError
from marble.models.base import BagModel, Output
from marble.models.parts.attention import GatedAttention, token_embedding
from marble.models.parts.ranges import Count, Rate
from marble.models.parts.vit import ViT4K
from marble.models.recipe import Recipe
from marble.specs import unknown_choice

Variant = Literal["none_fc", "lgp_fc"]
HIDDEN: dict[Variant, int] = {"none_fc": 256, "lgp_fc": 192}
REGION_CELLS = 16


class HIPT(BagModel):
    """Slide logits from region vectors.

    Args:
        dim: width of the tokens.
        outputs: number of logits.
        level: whose tiles are aggregated.
        variant: "none_fc" or "lgp_fc".
        hidden: width inside the model; 256 for none_fc and 192 for lgp_fc if not given.
        dropout: of every layer but ViT-4K's.
        heads: of the transformer over regions (lgp_fc).
        vit_depth: blocks of ViT-4K (lgp_fc).
        vit_heads: its heads (lgp_fc).
    """

    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam", lr=2e-4, weight_decay=1e-5, schedule="constant", warmup=0, epochs=20, patience=20, clip=None,
        sampling="weighted", decay_exempt=False,
    )  # fmt: skip
    reference_names: ClassVar[Mapping[str, str]] = {
        "local_phi.0.": "tile_pool.embed.0.",
        "local_attn_pool.attention_a.0.": "tile_pool.attention.value.",
        "local_attn_pool.attention_b.0.": "tile_pool.attention.gate.",
        "local_attn_pool.attention_c.": "tile_pool.attention.score.",
        "local_vit.": "tile_vit.",
        "local_vit.module.": "tile_vit.",  # trained on several devices
        "global_phi.0.": "region_embed.0.",
        "global_transformer.": "region_transformer.",
        "global_attn_pool.attention_a.0.": "region_attention.value.",
        "global_attn_pool.attention_b.0.": "region_attention.gate.",
        "global_attn_pool.attention_c.": "region_attention.score.",
        "global_rho.0.": "slide_embed.0.",
        "classifier.": "head.",
    }

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        variant: Variant = "none_fc",
        hidden: Count | None = None,
        dropout: Rate = 0.25,
        heads: Count = 3,
        vit_depth: Count = 6,
        vit_heads: Count = 6,
    ) -> None:
        super().__init__(dim, outputs, level)
        if variant not in HIDDEN:
            raise InputError(unknown_choice("variant", variant, list(get_args(Variant))))
        width = HIDDEN[variant] if hidden is None else hidden
        self.tile_pool: TilePool | None = None
        self.tile_vit: ViT4K | None = None
        self.region_transformer: nn.TransformerEncoder | None = None
        if variant == "none_fc":
            self.tile_pool = TilePool(dim, width, dropout)
        else:
            self.tile_vit = ViT4K(dim, width, vit_depth, vit_heads)
            layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=width, dropout=dropout)
            self.region_transformer = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.region_embed = token_embedding(width, width, dropout=dropout)
        self.region_attention = GatedAttention(width, width, dropout=dropout)
        self.slide_embed = token_embedding(width, width, dropout=dropout)
        self.head = nn.Linear(width, outputs)

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        vit_first = (f"{prefix}phi.0.weight" for prefix in ("local_vit.", "local_vit.module."))
        first = next((name for name in vit_first if name in tensors), "local_phi.0.weight")
        return tensors[first].shape[1], tensors["classifier.weight"].shape[0]

    def forward(self, bag: Bag) -> Output:
        bag.provenance.require_places("hipt", bag.slide_id)
        level, tokens = self.pick(bag), self.tokens(bag)  # (T, D)
        if self.tile_pool is not None:
            region, count = parent_regions(level)
            h, within = self.tile_pool(tokens, region, count)  # (R, hidden), (T,)
        else:
            assert self.tile_vit is not None
            region, count = square_regions(level)
            h, within = grid_vectors(self.tile_vit, tokens, level, region, count)
        h = self.region_embed(h)
        if self.region_transformer is not None:
            h = self.region_transformer(h.unsqueeze(1)).squeeze(1)  # regions are the sequence
        a = torch.softmax(self.region_attention(h)[0], dim=0)  # (R,)
        embedding = self.slide_embed(a @ h)  # (hidden,)
        return Output(self.head(embedding), embedding, within * a[region], self.level_of(bag))


class TilePool(nn.Module):
    """Gated-attention pooling of every region's tiles, whatever their number."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embed = token_embedding(dim, hidden, dropout=dropout)
        self.attention = GatedAttention(hidden, hidden, dropout=dropout)

    def forward(self, tokens: Tensor, region: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """(R, hidden) region vectors and (T,) attention, which sums to 1 within each region."""
        h = self.embed(tokens)  # (T, hidden)
        a = segment_softmax(self.attention(h)[0], region, count)  # (T,)
        return h.new_zeros(count, h.shape[1]).index_add(0, region, a[:, None] * h), a


def grid_vectors(vit: ViT4K, tokens: Tensor, level: Level, region: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(R, hidden) ViT-4K vectors, and (T,) its attention shared out among each region's tiles."""
    row, col = (level.cells.to(torch.int64) % REGION_CELLS).unbind(dim=1)
    place = row * REGION_CELLS + col
    flat = tokens.new_zeros(count * REGION_CELLS**2, tokens.shape[1])
    flat = flat.index_copy(0, region * REGION_CELLS**2 + place, tokens)
    vectors, attention = vit(flat.view(count, REGION_CELLS, REGION_CELLS, -1))
    weight = attention[region, place]  # (T,)
    return vectors, weight / weight.new_zeros(count).index_add(0, region, weight)[region]


def parent_regions(level: Level) -> tuple[Tensor, int]:
    """(T,) index of each tile's parent among the R that have tiles, and R; at the coarsest level, of its square."""
    if level.parent is None:
        return square_regions(level)
    return _numbered(level.parent)


def square_regions(level: Level) -> tuple[Tensor, int]:
    """(T,) index of the 16 x 16 square of cells each tile lies in, among the R that have tiles, and R."""
    squares = torch.div(level.cells, REGION_CELLS, rounding_mode="floor")
    return _numbered(cell_keys(squares))


def _numbered(names: Tensor) -> tuple[Tensor, int]:
    """(T,) the rank of each name among those that occur, numbers from 0 without gaps, and how many those are."""
    occur, rank = torch.unique(names, return_inverse=True)
    return rank, len(occur)


def segment_softmax(scores: Tensor, segment: Tensor, count: int) -> Tensor:
    """(T,) softmax of the scores among those of equal `segment` (T,), which is one of `count` numbers from 0."""
    largest = scores.detach().new_full((count,), -torch.inf)
    largest = largest.scatter_reduce(0, segment, scores.detach(), reduce="amax")
    raised = torch.exp(scores - largest[segment])
    return raised / raised.new_zeros(count).index_add(0, segment, raised)[segment]
