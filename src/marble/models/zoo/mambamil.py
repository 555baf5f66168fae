"""MambaMIL and SRMambaMIL: a stack of Mamba-1 mixers over the tokens in raster order, then attention pooling.

Embedding, `layers` x [h += Mixer(LayerNorm h)], LayerNorm, tanh attention. MambaMIL scans forwards, or forwards and
backwards (`bidirectional`); SRMambaMIL adds a branch that reads every `rate`-th token in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from marble.bags.bag import Bag
from marble.errors import InputError
from marble.models.base import BagModel, Output
from marble.models.parts.attention import GatedAttention, token_embedding
from marble.models.parts.ranges import Count, Rate
from marble.models.recipe import Recipe
from marble.models.ssm.mamba1 import Mamba1Mixer, xavier
from marble.specs import unknown_choice

INITS = ("authors", "proper")


class _Sizes(NamedTuple):
    """The options that MambaMIL and SRMambaMIL share, in the words of `MambaMIL`."""

    layers: int
    hidden: int
    attention_hidden: int
    state: int
    act: str
    dropout: float
    init: str


class _MambaStack(BagModel):
    """What MambaMIL and SRMambaMIL share; `second` is the mixers' second branch."""

    # The order matters, but the authors' raster order is part of the method: a prediction uses it as it is.
    order_sensitive: ClassVar[bool] = False
    authors_recipe: ClassVar[Recipe] = Recipe(
        optimizer="adam",
        lr=2e-4,
        weight_decay=1e-5,
        schedule="constant",
        warmup=0,
        epochs=200,
        patience=20,
        patience_from=50,
        select_by="loss",
        clip=None,
        survival_loss="nll",
        decay_exempt=False,
    )
    authors_survival_recipe: ClassVar[Recipe | None] = replace(
        authors_recipe, accumulate=32, select_by="metric", patience_from=40
    )
    authors_survival_options: ClassVar[Mapping[str, Any]] = {"dropout": 0.25}
    reference_names: ClassVar[Mapping[str, str]] = {
        "_fc1.": "embed.",
        "attention.0.": "attention.value.",
        "attention.2.": "attention.score.",
    }

    def __init__(self, dim: int, outputs: int, level: int, sizes: _Sizes, second: Literal["flip"] | int | None) -> None:
        super().__init__(dim, outputs, level)
        layers, hidden, attention_hidden, state, act, dropout, init = sizes
        self.embed = token_embedding(dim, hidden, act, dropout)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), Mamba1Mixer(hidden, state, second=second)) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.attention = GatedAttention(hidden, attention_hidden, gated=False)
        self.classifier = nn.Linear(hidden, outputs)
        initialise(self, init, keep=self.layers)

    def encode(self, x: Tensor) -> Tensor:
        """(T, D) -> (T, hidden) tokens that are pooled."""
        h: Tensor = self.embed(x)
        for layer in self.layers:
            h = h + layer(h)
        normed: Tensor = self.norm(h)
        return normed

    def forward(self, bag: Bag) -> Output:
        h = self.encode(self.tokens(bag))
        attention = self.attention(h)[0].softmax(0)  # (T,)
        pooled = attention @ h
        return Output(self.classifier(pooled), pooled, attention, self.level_of(bag))

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        return tensors["_fc1.0.weight"].shape[1], tensors["classifier.weight"].shape[0]


class MambaMIL(_MambaStack):
    """MambaMIL with plain or bidirectional Mamba.

    Args:
        dim, outputs, level: see `BagModel`.
        layers: number of mixers.
        bidirectional: add a branch that reads the tokens from the last to the first.
        hidden: width of the embedded tokens.
        attention_hidden: width of the attention layer.
        state: states per channel.
        act: activation of the embedding, "gelu" or "relu".
        dropout: after the embedding (the authors: 0 for classification, 0.25 for survival).
        init: "authors" re-draws every linear layer Xavier-normal with zero bias, which also undoes Mamba's
            initial steps dt (0.69 instead of 0.001 to 0.1); "proper" leaves the mixers as Mamba draws them.
    """

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        layers: Count = 2,
        bidirectional: bool = False,
        hidden: Count = 512,
        attention_hidden: Count = 128,
        state: Count = 16,
        act: str = "gelu",
        dropout: Rate = 0.0,
        init: str = "authors",
    ) -> None:
        sizes = _Sizes(layers, hidden, attention_hidden, state, act, dropout, init)
        super().__init__(dim, outputs, level, sizes, second="flip" if bidirectional else None)


class SRMambaMIL(_MambaStack):
    """MambaMIL with sequence reordering: a second branch reads every `rate`-th token in turn.

    Args:
        dim, outputs, level: see `BagModel`.
        layers, hidden, attention_hidden, state, act, dropout, init: see `MambaMIL`.
        rate: stride of the second branch: 5 as in all released scripts (the original program's own default is 10).
    """

    def __init__(
        self,
        dim: int,
        outputs: int,
        level: int = -1,
        layers: Count = 2,
        rate: Count = 5,
        hidden: Count = 512,
        attention_hidden: Count = 128,
        state: Count = 16,
        act: str = "gelu",
        dropout: Rate = 0.0,
        init: str = "authors",
    ) -> None:
        if rate < 1:
            raise InputError(f"rate must be at least 1, got {rate}")
        sizes = _Sizes(layers, hidden, attention_hidden, state, act, dropout, init)
        super().__init__(dim, outputs, level, sizes, second=rate)


def initialise(model: nn.Module, init: str, keep: nn.Module) -> None:
    """Xavier everywhere ("authors"), or everywhere but inside `keep` ("proper")."""
    if init not in INITS:
        raise InputError(unknown_choice("init", init, list(INITS)))
    for child in model.children():
        if init == "authors" or child is not keep:
            xavier(child)
