"""MARBLE: a Mamba-2 block per magnification, coarse-to-fine fusion along parents, attention pooling at the finest.

Letters of the paper, for levels k = 0 (coarsest) ... S (finest) with T_k tokens of width D:

    X  (T_k, D)  tokens          p  (T_k,)  parents in level k-1          M  the level's block(s)
    Y  (T_k, D)  M's output      phi  Linear(2D, D)                       w  (D,) pooling vector

    X~ = X for k = 0, phi([X, Y_{k-1}[p]]) for k > 0             fusion
    Y  = M(X~)                                                   block "literal", as the paper's equations have it
    Y  = X~ + M(RMSNorm(X~))                                     block "prenorm", as language models have it
    alpha = softmax(Y_S w),  z = sum alpha Y_S,  logits = head(z)

`forward_as_written` is these lines. `forward` gives the same numbers by the algebra of `marble_fast`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from marble.bags.augment import drop_coarse, generator, shuffled
from marble.bags.bag import Bag, Level, cell_keys
from marble.errors import BagError, InputError
from marble.models.base import BagModel, Output
from marble.models.ssm.ssd import SEGMENTED, Mamba2, block_shape
from marble.models.zoo.marble_fast import BlockInput, composing_pays, mixed, pooled
from marble.specs import unknown_choice

CHOICES = {
    "block": ["literal", "prenorm"],
    "mixer": ["mamba2", "mlp"],
    "fusion": ["parent", "none", "shuffled"],
}


class TokenMlp(nn.Module):
    """A gated MLP on each token alone, with as many parameters as a given block: what is left without the scan."""

    def __init__(self, dim: int, parameters: int) -> None:
        super().__init__()
        hidden = max(1, round(parameters / (3 * dim)))
        self.expand = nn.Linear(dim, 2 * hidden, bias=False)
        self.out_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        value, gate = self.expand(tokens).chunk(2, dim=-1)
        out: Tensor = self.out_proj(value * silu(gate))
        return out


class Marble(BagModel):
    """The model of the paper, for any number of levels.

    Args:
        dim: width D of the tokens.
        outputs: number of logits.
        levels: how many levels the bags have; with 1, only `level` of each bag is read, whatever else it holds.
        level: the one to read when `levels` is 1; counted from the finest if negative.
        block: "literal" or "prenorm".
        mixer: "mamba2", or "mlp" of equal size: the control without a scan.
        fusion: "parent"; controls: "none" (no level sees another, so only the finest counts) and "shuffled" (every
            tile is given the tile of a fixed, wrong parent).
        depth: blocks per level.
        drop_rate: fraction of coarsest tiles dropped with all their descendants at each training step.
        shuffle: whether each training step sees the tokens in a new order.
        d_state: size of a head's state.
        headdim: width of a head; by default 64, or the largest power of two that divides the inner width 2D.
    """

    order_sensitive: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        outputs: int,
        levels: int = 2,
        level: int = -1,
        block: str = "literal",
        mixer: str = "mamba2",
        fusion: str = "parent",
        depth: int = 1,
        drop_rate: float = 0.1,
        shuffle: bool = True,
        d_state: int = 128,
        headdim: int | None = None,
    ) -> None:
        super().__init__(dim, outputs, level)
        for option, value in (("block", block), ("mixer", mixer), ("fusion", fusion)):
            if value not in CHOICES[option]:
                raise InputError(unknown_choice(option, str(value), CHOICES[option]), where="model 'marble'")
        _check_numbers(levels, level, depth, drop_rate)
        self.levels, self.block, self.mixer, self.fusion = levels, block, mixer, fusion
        self.drop_rate, self.shuffle = drop_rate, shuffle
        if mixer == "mlp":
            self.__dict__["order_sensitive"] = False  # of this instance: without a scan the order is nothing

        # Without fusion nothing of a coarser level reaches the prediction, so it gets no weights either.
        mixing = levels if fusion != "none" else 1
        self.phi = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(mixing - 1))
        self.mixers = nn.ModuleList(
            nn.ModuleList(_mixer(mixer, dim, d_state, headdim) for _ in range(depth)) for _ in range(mixing)
        )
        self.norms = nn.ModuleList(
            nn.ModuleList(nn.RMSNorm(dim, eps=1e-5) for _ in range(depth if block == "prenorm" else 0))
            for _ in range(mixing)
        )
        self.score = nn.Linear(dim, 1, bias=False)  # w
        nn.init.normal_(self.score.weight, std=1 / math.sqrt(dim))
        self.head = nn.Linear(dim, outputs, bias=outputs > 1)  # a Cox risk has no intercept

    def augment(self, bag: Bag, rng: torch.Generator) -> Bag:
        """Coarse-branch drop, then a new order of every level."""
        bag = drop_coarse(bag, self.drop_rate, rng)
        return shuffled(bag, rng) if self.shuffle else bag

    # ---- the equations -----------------------------------------------------------------------------------------

    def forward_as_written(self, bag: Bag) -> Output:
        """The paper's equations line by line: the reference for `forward`."""
        Y = torch.empty(0)
        levels = self._read(bag)
        for k, level in enumerate(levels):
            X = self.cast(level, bag)
            if k > 0:
                X = self.phi[k - 1](torch.cat([X, Y[self._parents(bag, levels, k)]], dim=1))
            for i, mixer in enumerate(_modules(self.mixers[k])):
                X = X + mixer(self._norm(k, i)(X)) if self.block == "prenorm" else mixer(X)
            Y = X
        scores = self.score(Y)[:, 0]
        alpha = torch.softmax(scores, dim=0)
        return self._output(alpha @ Y, alpha, bag)

    # ---- the same numbers, faster ------------------------------------------------------------------------------

    def forward(self, bag: Bag) -> Output:
        if not all(isinstance(m, Mamba2) and m.path() in SEGMENTED for level in self.mixers for m in _modules(level)):
            return self.forward_as_written(bag)
        levels = self._read(bag)
        last = (len(levels) - 1, len(_modules(self.mixers[-1])) - 1)
        Y: Tensor | None = None
        for k in range(len(levels)):
            entering = self._enter(bag, levels, k, Y)
            for i, mixer in enumerate(_modules(self.mixers[k])):
                assert isinstance(mixer, Mamba2)
                X = entering.tokens
                if self.block == "prenorm":
                    entering = BlockInput(self._norm(k, i)(X))
                if (k, i) == last:
                    return self._pool(entering, mixer, X, bag)
                Y = mixed(entering, mixer)
                if self.block == "prenorm":
                    Y = X + Y
                entering = BlockInput(Y)
        raise AssertionError("unreachable: every model has a last block")

    def _enter(self, bag: Bag, levels: Sequence[Level], k: int, above: Tensor | None) -> BlockInput:
        """X~ of level k; for the literal block of a large bag, with phi composed into the block's projection."""
        X = levels[k].features
        if above is None:
            return BlockInput(X if self.block == "literal" else X.to(self.score.weight.dtype))
        phi, first = self.phi[k - 1], _modules(self.mixers[k])[0]
        assert isinstance(phi, nn.Linear)
        assert isinstance(first, Mamba2)
        W_x, W_c, W_in = phi.weight[:, : self.dim], phi.weight[:, self.dim :], first.in_proj.weight
        parent = self._parents(bag, levels, k)
        context = linear(above, W_c, phi.bias)  # (T_{k-1}, D) once per parent, not once per child
        training = torch.is_grad_enabled()
        if self.block == "literal" and composing_pays(len(X), len(above), self.dim, len(W_in), training):
            return BlockInput(X, W_in @ W_x, context @ W_in.t(), parent)
        return BlockInput(linear(X.to(W_x.dtype), W_x) + context.index_select(0, parent))

    def _pool(self, entering: BlockInput, mixer: Mamba2, X: Tensor, bag: Bag) -> Output:
        w = self.score.weight[0]
        if self.block == "literal":
            z, scores = pooled(entering, mixer, w)
            return self._output(z, torch.softmax(scores, dim=0), bag)
        z, scores = pooled(entering, mixer, w, extra_scores=X @ w)
        alpha = torch.softmax(scores, dim=0)
        return self._output(z + alpha @ X, alpha, bag)

    # ---- parts of both -----------------------------------------------------------------------------------------

    def _read(self, bag: Bag) -> tuple[Level, ...]:
        """The levels this model mixes, coarsest first."""
        if self.levels > 1 and bag.depth != self.levels:
            raise BagError(
                f"the bag has {bag.depth} levels, the model was built for {self.levels}",
                where=bag.slide_id,
                hint="Build the model with as many levels, or with levels=1 and level= the one to read",
            )
        levels = bag.levels if self.levels > 1 and self.fusion != "none" else (self.pick(bag),)
        for level in levels:
            if level.dim != self.dim:
                self.cast(level, bag)  # says what is wrong
        return levels

    def _norm(self, k: int, i: int) -> nn.Module:
        return _modules(self.norms[k])[i]

    def _parents(self, bag: Bag, levels: Sequence[Level], k: int) -> Tensor:
        """(T_k,) the parents, or with `fusion="shuffled"` the wrong ones."""
        parent = levels[k].parent
        assert parent is not None
        return parent if self.fusion == "parent" else wrong_parents(bag.slide_id, levels[k - 1].cells, parent, k)

    def _output(self, z: Tensor, alpha: Tensor, bag: Bag) -> Output:
        level = self.level_of(bag) if self.levels == 1 else bag.depth - 1
        return Output(logits=self.head(z), embedding=z, attention=alpha, level=level)


def wrong_parents(slide_id: str, coarse_cells: Tensor, parent: Tensor, k: int) -> Tensor:
    """Parents permuted among the coarse tiles, siblings together: a function of slide and cells, not of their order."""
    by_rank = torch.argsort(cell_keys(coarse_cells))  # (R,) tile of each rank, row-major
    rank = torch.empty_like(by_rank)
    rank[by_rank] = torch.arange(len(by_rank), device=by_rank.device)
    order = torch.randperm(len(by_rank), generator=generator(slide_id, "shuffled-parents", k)).to(by_rank.device)
    return by_rank[order[rank[parent]]]


def _mixer(kind: str, dim: int, d_state: int, headdim: int | None) -> nn.Module:
    headdim = math.gcd(2 * dim, 64) if headdim is None else headdim
    if kind == "mamba2":
        return Mamba2(dim, d_state=d_state, headdim=headdim)
    return TokenMlp(dim, block_shape(dim, d_state=d_state, headdim=headdim).parameters(dim))


def _modules(owner: nn.Module) -> nn.ModuleList:
    assert isinstance(owner, nn.ModuleList)
    return owner


def _check_numbers(levels: int, level: int, depth: int, drop_rate: float) -> None:
    if levels < 1 or depth < 1:
        raise InputError(f"levels and depth must be at least 1, got {levels} and {depth}", where="model 'marble'")
    if levels > 1 and level != -1:
        raise InputError(
            f"level={level} picks the one level to read, but levels={levels}",
            where="model 'marble'",
            hint="Set levels=1",
        )
    if not 0 <= drop_rate < 1:
        raise InputError(f"drop_rate must be in [0, 1), got {drop_rate}", where="model 'marble'")
