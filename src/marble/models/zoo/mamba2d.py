"""2DMambaMIL: tokens on their grid, Mamba-1 mixers with a 2-D scan, attention pooling over every cell of the grid.

Cells without a tile hold one trainable vector and take part in everything, the pooling included, as in the original.
Its recurrence is followed, not its pure-torch scan, which computes something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag
from marble.errors import BagError, InputError
from marble.models.base import BagModel, Output
from marble.models.parts.attention import GatedAttention, token_embedding
from marble.models.parts.ranges import Count, Rate
from marble.models.recipe import Recipe
from marble.models.ssm.mamba1 import Mamba1Mixer
from marble.models.zoo.mambamil import initialise
from marble.specs import unknown_choice

EMPTY = ("trainable", "zero")
#: ten times the grid of the largest slides; more means that the cells are not those of a grid of tiles
MAX_CELLS = 1_000_000


class Mamba2DBlock(nn.Module):
    """g += Mixer(RMSNorm g) over the cells of a grid, row by row."""

    def __init__(self, width: int, state: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.mixer = Mamba1Mixer(width, state)

    def forward(self, g: Tensor, grid: tuple[int, int]) -> Tensor:
        mixed: Tensor = self.mixer(self.norm(g), grid)
        return g + mixed


class Mamba2DMIL(BagModel):
    """2DMambaMIL.

    Its softmax runs over all cells, empty ones included, and so does the pooled vector. The attention it hands out is
    that of the tiles' cells, divided by their sum, because heatmaps are about tiles.

    Args:
        dim, outputs, level: see `BagModel`.
        layers: number of blocks.
        hidden: width of the embedded tokens.
        attention_hidden: width of the attention layer.
        state: states per channel.
        dropout: after the embedding.
        grid: "slide" for the smallest grid that holds the slide's tiles, or (height, width) in cells, the same for
            every slide (the authors: that of the dataset's largest slide).
        empty: what cells without a tile hold: one "trainable" vector or "zero".
        init: "authors" or "proper", see `MambaMIL`.
    """

    order_sensitive: ClassVar[bool] = False  # the cells say where a token goes
    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adamw",
        lr=1e-4,
        weight_decay=1e-5,
        schedule="cosine",
        warmup=0,
        epochs=20,
        patience=20,
        clip=None,
        survival_loss="nll",
        decay_exempt=False,
    )
    reference_names: ClassVar[Mapping[str, str]] = {
        "_fc1.": "embed.",
        "layers.pad_token": "empty_cell",
        "layers.layers.": "blocks.",
        "attention.0.": "attention.value.",
        "attention.2.": "attention.score.",
    }

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        layers: Count = 1,
        hidden: Count = 128,
        attention_hidden: Count = 128,
        state: Count = 16,
        dropout: Rate = 0.25,
        grid: str | Sequence[int] = "slide",
        empty: str = "trainable",
        init: str = "authors",
    ) -> None:
        super().__init__(dim, outputs, level)
        if empty not in EMPTY:
            raise InputError(unknown_choice("empty", empty, list(EMPTY)))
        self.grid = None if grid == "slide" else _fixed_grid(grid)
        self.embed = token_embedding(dim, hidden, "gelu", dropout)
        self.empty_cell = nn.Parameter(torch.rand(hidden)) if empty == "trainable" else None
        self.blocks = nn.ModuleList(Mamba2DBlock(hidden, state) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.attention = GatedAttention(hidden, attention_hidden, gated=False)
        self.classifier = nn.Linear(hidden, outputs)
        initialise(self, init, keep=self.blocks)

    def place(self, bag: Bag) -> tuple[Tensor, tuple[int, int]]:
        """(T,) place of each token in the grid, counted row by row, and the grid's (height, width)."""
        bag.provenance.require_places("2dmambamil", bag.slide_id)
        cells = self.pick(bag).cells.to(torch.int64)
        first, last = cells.amin(0).tolist(), cells.amax(0).tolist()
        if self.grid is None:
            cells = cells - cells.amin(0)
            height, width = last[0] - first[0] + 1, last[1] - first[1] + 1
            if height * width > MAX_CELLS:
                raise BagError(
                    f"tiles span a grid of {height} x {width} cells, more than {MAX_CELLS}",
                    where=bag.slide_id,
                    hint="Cells must be steps of one tile; pixel coordinates are turned into cells by `marble import`",
                )
        else:
            height, width = self.grid
            if min(first) < 0 or last[0] >= height or last[1] >= width:
                raise BagError(
                    f"cells from {tuple(first)} to {tuple(last)} do not fit the grid of {height} x {width}",
                    where=bag.slide_id,
                    hint='Build the model with the grid of the largest slide, or with grid="slide"',
                )
        return cells[:, 0] * width + cells[:, 1], (height, width)

    def encode(self, x: Tensor, place: Tensor, grid: tuple[int, int]) -> Tensor:
        """(T, D) tokens at their places -> (H W, hidden) cells that are pooled."""
        tokens = self.embed(x).to(self.norm.weight.dtype)  # the empty cell's, also where projections are narrow
        empty = tokens.new_zeros(tokens.shape[1]) if self.empty_cell is None else self.empty_cell
        g = empty.expand(grid[0] * grid[1], -1).index_put((place,), tokens)
        for block in self.blocks:
            g = block(g, grid)
        cells: Tensor = self.norm(g)
        return cells

    def forward(self, bag: Bag) -> Output:
        place, grid = self.place(bag)
        g = self.encode(self.tokens(bag), place, grid)
        scores = self.attention(g)[0]  # (H W,)
        pooled = scores.softmax(0) @ g
        return Output(self.classifier(pooled), pooled, scores[place].softmax(0), self.level_of(bag))

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        return tensors["_fc1.0.weight"].shape[1], tensors["classifier.weight"].shape[0]


def _fixed_grid(grid: str | Sequence[int]) -> tuple[int, int]:
    if isinstance(grid, str) or len(grid) != 2 or min(grid) < 1:
        raise InputError(f'grid must be "slide" or (height, width) in cells, got {grid!r}')
    return int(grid[0]), int(grid[1])
