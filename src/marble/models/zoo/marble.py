"""MARBLE: a Mamba-2 block per magnification, coarse-to-fine fusion along parents, attention pooling at the finest.

Letters of the paper, for levels k = 0 (coarsest) ... S (finest) with T_k tokens of width D:

    X  (T_k, D)  tokens          p  (T_k,)  parents in level k-1          M  the level's block(s)
    Y  (T_k, D)  M's output      phi  Linear(2D, D)                       w  (D,) pooling vector

    X~ = X for k = 0, phi([X, Y_{k-1}[p]]) for k > 0             fusion
    Y  = M(X~)                                                   block "literal", as the paper's equations have it
    Y  = X~ + M(RMSNorm(X~))                                     block "prenorm", as language models have it
    alpha = softmax(Y_S w),  z = sum alpha Y_S,  logits = head(z)

Beside the paper: tokens may be standardised (`models.statistics`) and projected to a smaller width before all this, the
training may start as a mean of fine tokens (`start`), and every level may be pooled (`readout`). M reads the tokens of
its level in an order (`models.orders`), or is a mixer that knows none (`mixer="set"`).

`forward_as_written` is these lines. `forward` gives the same numbers by the algebra of `marble_fast`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from marble.bags.augment import drop_coarse, generator, noised, shuffled
from marble.bags.bag import Bag, Level, cell_keys
from marble.errors import BagError
from marble.models.base import BagModel, Output
from marble.models.orders import arranged, best_first, factor, inverse, is_scored, order_of_each_level
from marble.models.parts.ranges import Amount, Count, Rate
from marble.models.ssm.set_mixer import SetMixer
from marble.models.ssm.ssd import Mamba2
from marble.models.ssm.ssd_stream import keeps_rows, low_precision
from marble.models.zoo.marble_fast import BlockInput, composing_pays, is_fast, mixed, pooled
from marble.models.zoo.marble_options import check_choices, check_numbers, check_traversal
from marble.models.zoo.marble_start import new_mixer, new_score, start_from


class Marble(BagModel):
    """The model of the paper, for any number of levels.

    Args:
        dim: width D of the tokens.
        outputs: number of logits.
        levels: how many levels the bags have; with 1, only `level` of each bag is read, whatever else it holds.
        level: the one to read when `levels` is 1; counted from the finest if negative.
        block: "literal" or "prenorm".
        mixer: "mamba2"; "set", of the same state size, whose result is bitwise the same for any order of the tokens; or
            "mlp" of equal size: the control in which tokens do not meet before the pooling.
        fusion: "parent"; controls: "none" (no level sees another, so only the finest counts) and "shuffled" (every
            tile is given the tile of a fixed, wrong parent).
        depth: blocks per level.
        drop_rate: fraction of coarsest tiles dropped with all their descendants at each training step.
        shuffle: whether each training step sees the tokens in a new order.
        d_state: size of a head's state.
        headdim: width of a head; by default 64, or the largest power of two that divides the inner width 2D.
        project: width of one linear map, shared by the levels, that makes D smaller first; None for none.
        dropout: of the tokens, after that map.
        noise: SD of the Gaussian noise that training adds to tokens, in SDs of their features where these are known.
        start: "default"; "even": w starts at zero, so that training starts from evenly pooled tokens; "residual": also
            phi starts as the fine token (identity) plus a random map of its parent; "fine": without that map, so that
            training takes from the parents only what helps.
        readout: "finest" pools the finest level alone; "all" pools every level with a w of its own, and the head sees
            the pooled vectors side by side.
        order: in which a scan reads each level: one of `models.orders.ORDERS`, or a list with one per level.
        directions: 1, or 2 to read every level from both ends with the same weights, and take the mean.
        intercept: whether the head adds a constant; by default where it has several outputs, since one may be a Cox
            risk, which knows none. An experiment sets it for the one output of a yes-or-no question.
    """

    order_sensitive: ClassVar[bool] = True
    small_options: ClassVar[Mapping[str, Any]] = {
        "block": "prenorm", "mixer": "set", "project": 64, "dropout": 0.25, "start": "residual",
    }  # fmt: skip

    def __init__(
        self,
        dim: int,
        outputs: int,
        levels: Count = 2,
        level: int = -1,
        block: str = "literal",
        mixer: str = "mamba2",
        fusion: str = "parent",
        depth: Count = 1,
        drop_rate: Rate = 0.1,
        shuffle: bool = True,
        d_state: Count = 128,
        headdim: Count | None = None,
        project: Count | None = None,
        dropout: Rate = 0.0,
        noise: Amount = 0.0,
        start: str = "default",
        readout: str = "finest",
        order: str | Sequence[str] = "shuffle",
        directions: int = 1,
        intercept: bool | None = None,
    ) -> None:
        super().__init__(dim, outputs, level)
        chosen = {"block": block, "mixer": mixer, "fusion": fusion, "start": start, "readout": readout}
        check_choices(chosen)
        check_numbers(levels, level, depth, drop_rate, project, dropout)
        self.levels, self.block, self.mixer, self.fusion = levels, block, mixer, fusion
        self.drop_rate, self.shuffle = drop_rate, shuffle
        self.width = width = dim if project is None else project
        self.projection = None if project is None else nn.Linear(dim, width)
        self.drop, self.noise = nn.Dropout(dropout), noise
        # Without fusion nothing of a coarser level reaches the prediction, so it gets no weights either.
        mixing = levels if fusion != "none" else 1
        self.orders, self.directions = order_of_each_level(order, mixing), directions
        check_traversal(mixer, self.orders, directions)
        # of this instance: a prediction averages over orders only where the model has none of its own
        self.__dict__["order_sensitive"] = mixer == "mamba2" and "shuffle" in self.orders
        if mixer == "set":
            self.orders = ("raster",) * mixing  # whichever: sums are taken in one order, so they round in one way
        self.phi = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(mixing - 1))
        self.mixers = nn.ModuleList(
            nn.ModuleList(new_mixer(mixer, width, d_state, headdim) for _ in range(depth)) for _ in range(mixing)
        )
        self.norms = nn.ModuleList(
            nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(depth if block == "prenorm" else 0))
            for _ in range(mixing)
        )
        self.score = new_score(width)  # w
        # the w of every coarser level, where these are pooled too
        self.coarse_scores = nn.ModuleList(new_score(width) for _ in range(mixing - 1 if readout == "all" else 0))
        # the scores that learned orders sort by
        self.order_scores = nn.ModuleDict(
            {str(k): new_score(width) for k, name in enumerate(self.orders) if is_scored(name, k)}
        )
        has_intercept = outputs > 1 if intercept is None else intercept
        self.head = nn.Linear(width * (1 + len(self.coarse_scores)), outputs, bias=has_intercept)
        start_from(start, self.phi, (self.score, *self.coarse_scores))

    def augment(self, bag: Bag, rng: torch.Generator) -> Bag:
        """Coarse-branch drop, noise, then a new order of every level, unless the model has orders of its own."""
        bag = drop_coarse(bag, self.drop_rate, rng)
        if self.noise > 0:
            bag = noised(bag, [self.noise * sd for sd in self.inputs.sds(bag.depth)], rng)
        return shuffled(bag, rng) if self.shuffle and "shuffle" in self.orders else bag

    def levels_read(self, bag: Bag) -> tuple[Level, ...]:
        """The levels this model mixes, coarsest first."""
        if self.levels > 1 and bag.depth != self.levels:
            raise BagError(
                f"the bag has {bag.depth} levels, the model was built for {self.levels}",
                where=bag.slide_id,
                hint="Build the model with as many levels, or with levels=1 and level= the one to read",
            )
        levels = bag.levels if self.levels > 1 and self.fusion != "none" else (self.pick(bag),)
        for level in levels:
            self.check_width(level, bag)
        return levels

    @torch.no_grad()
    def start_beside_linear_term(self) -> None:
        """A head of zeros: training starts as the linear term, and adds to it only what helps."""
        self.head.weight.zero_()
        if self.head.bias is not None:
            self.head.bias.zero_()

    # ---- the equations -----------------------------------------------------------------------------------------

    def forward_as_written(self, bag: Bag) -> Output:
        """The paper's equations line by line: the reference for `forward`."""
        levels, moved = arranged(self.levels_read(bag), self.orders)
        Y, pooled_coarse = self._encode(bag, levels)
        scores = self.score(Y)[:, 0]
        alpha = torch.softmax(scores, dim=0)
        return self._output([*pooled_coarse, alpha @ Y], alpha, moved[-1], bag)

    def _encode(self, bag: Bag, levels: Sequence[Level]) -> tuple[Tensor, list[Tensor]]:
        """Y of the last of `levels`, and the pooled vectors of those before it that are read out."""
        Y = torch.empty(0)
        pooled_coarse: list[Tensor] = []
        for k, level in enumerate(levels):
            s: Tensor | None = None  # scores that the level is read by
            X = self.cast(level, bag, self._place(bag, k))
            X = self.drop(X if self.projection is None else self.projection(X))
            if k > 0:
                parent = self._parents(bag, levels, k)
                if self.orders[k] == "coarse-attention":
                    above = self.order_scores[str(k)](Y)[:, 0]
                    Y, s = Y * factor(above)[:, None], above[parent]
                X = self.phi[k - 1](torch.cat([X, Y[parent]], dim=1))
            if self.orders[k] == "learned":
                s = self.order_scores[str(k)](X)[:, 0]
                X = X * factor(s)[:, None]
            read = None if s is None else best_first(s)
            X = X if read is None else X[read]
            for i, mixer in enumerate(_modules(self.mixers[k])):
                N = self._norm(X, k, i) if self.block == "prenorm" else X
                M = mixer(N) if self.directions == 1 else (mixer(N) + mixer(N.flip(0)).flip(0)) / 2
                X = X + M if self.block == "prenorm" else M
            Y = X if read is None else X[inverse(read)]
            pooled_coarse += self._pool_coarse(k, Y)
        return Y, pooled_coarse

    def coarse_tokens(self, seen: Bag) -> Tensor:
        """(T, D) Y of the finest level of `seen`; a model that mixes one level has none for the others."""
        if len(self.mixers) == 1:
            return super().coarse_tokens(seen)
        levels, moved = arranged(seen.levels, self.orders[: seen.depth])
        Y, _ = self._encode(seen, levels)
        return Y if moved[-1] is None else Y[inverse(moved[-1])]

    def _pool_coarse(self, k: int, Y: Tensor) -> list[Tensor]:
        """The pooled vector (D,) of a coarser level, where these are read out; else nothing."""
        if k >= len(self.coarse_scores):
            return []
        return [torch.softmax(self.coarse_scores[k](Y)[:, 0], dim=0) @ Y]

    # ---- the same numbers, faster ------------------------------------------------------------------------------

    def forward(self, bag: Bag) -> Output:
        one_way = self.directions == 1 and len(self.order_scores) == 0
        if not one_way or not all(is_fast(mixer) for level in self.mixers for mixer in _modules(level)):
            return self.forward_as_written(bag)
        levels, moved = arranged(self.levels_read(bag), self.orders)
        last = (len(levels) - 1, len(_modules(self.mixers[-1])) - 1)
        Y: Tensor | None = None
        pooled_coarse: list[Tensor] = []
        for k in range(len(levels)):
            entering = self._enter(bag, levels, k, Y)
            for i, mixer in enumerate(_modules(self.mixers[k])):
                assert isinstance(mixer, Mamba2 | SetMixer)
                X = entering.tokens
                if self.block == "prenorm":
                    entering = BlockInput(self._norm(X, k, i))
                if (k, i) == last:
                    z, alpha = self._pool(entering, mixer, X)
                    return self._output([*pooled_coarse, z], alpha, moved[-1], bag)
                Y = mixed(entering, mixer)
                if self.block == "prenorm":
                    Y = X + Y
                entering = BlockInput(Y)
            assert Y is not None
            pooled_coarse += self._pool_coarse(k, Y)
        raise AssertionError("unreachable: every model has a last block")

    def _enter(self, bag: Bag, levels: Sequence[Level], k: int, above: Tensor | None) -> BlockInput:
        """X~ of level k; for the literal block of a large bag, with phi composed into the block's projection.

        Statistics are folded into the first linear map there is: the projection, phi or the block's own.
        """
        place, slide, first = self._place(bag, k), bag.slide_id, _modules(self.mixers[k])[0]
        assert isinstance(first, Mamba2 | SetMixer)
        W_in = first.in_proj.weight
        # where factors are rounded, what is folded would be a small difference of large numbers
        rounded = self.inputs.is_set and low_precision(levels[k].features) is not None
        changed = rounded or self.projection is not None or (self.training and self.drop.p > 0)
        X = self._changed(levels[k], place, slide) if changed else levels[k].features
        if above is None:
            if changed or self.block == "prenorm":
                return BlockInput(X if changed else self.inputs(X.to(W_in.dtype), place, slide))
            W, shift = self.inputs.fold(W_in, None, place, slide)
            if shift is None:
                return BlockInput(X)
            return BlockInput(X, W, shift[None], torch.zeros(len(X), dtype=torch.int64, device=X.device))
        phi = self.phi[k - 1]
        assert isinstance(phi, nn.Linear)
        # At once, because their gradients are joined once; whole, because those of strided halves come transposed.
        W_x, W_c = (half.contiguous() for half in torch.split(phi.weight, self.width, dim=1))
        bias: Tensor | None = phi.bias
        if not changed:
            W_x, bias = self.inputs.fold(W_x, bias, place, slide)
        parent = self._parents(bag, levels, k)
        context = linear(above, W_c, bias)  # (T_{k-1}, D) once per parent, not once per child
        training = torch.is_grad_enabled()
        # Where the set mixer projects its segments twice, it does so from X~, whose gradient adds up without detours.
        once = isinstance(first, Mamba2) or not training or keeps_rows(len(X), W_in)
        if self.block == "literal" and once and composing_pays(len(X), len(above), self.width, len(W_in), training):
            return BlockInput(X, W_in @ W_x, context @ W_in.t(), parent)
        return BlockInput(linear(X.to(W_x.dtype), W_x) + context.index_select(0, parent))

    def _changed(self, level: Level, place: int, slide: str) -> Tensor:
        """(T, D) tokens that are standardised and projected in one map, or standardised alone; with dropout."""
        X = level.features.to(self.score.weight.dtype)
        if self.projection is None:
            X = self.inputs(X, place, slide)
        elif low_precision(X) is None:
            X = linear(X, *self.inputs.fold(self.projection.weight, self.projection.bias, place, slide))
        else:
            X = self.projection(self.inputs(X, place, slide))
        dropped: Tensor = self.drop(X)
        return dropped

    def _pool(self, entering: BlockInput, mixer: Mamba2 | SetMixer, X: Tensor) -> tuple[Tensor, Tensor]:
        """The pooled vector z and its weights alpha, of the last block's outputs."""
        w = self.score.weight[0]
        if self.block == "literal":
            z, scores = pooled(entering, mixer, w)
            return z, torch.softmax(scores, dim=0)
        z, scores = pooled(entering, mixer, w, extra_scores=X @ w)
        alpha = torch.softmax(scores, dim=0)
        return z + alpha @ X, alpha

    # ---- parts of both -----------------------------------------------------------------------------------------

    def _place(self, bag: Bag, k: int) -> int:
        """Where the k-th level that is read stands in the bag."""
        return k if len(self.mixers) > 1 else self.level_of(bag)

    def _norm(self, X: Tensor, k: int, i: int) -> Tensor:
        normed: Tensor = _modules(self.norms[k])[i](X.to(self.score.weight.dtype))  # wide, as the sums are
        return normed

    def _parents(self, bag: Bag, levels: Sequence[Level], k: int) -> Tensor:
        """(T_k,) the parents, or with `fusion="shuffled"` the wrong ones."""
        parent = levels[k].parent
        assert parent is not None
        return parent if self.fusion == "parent" else wrong_parents(bag.slide_id, levels[k - 1].cells, parent, k)

    def _output(self, pooled_levels: list[Tensor], alpha: Tensor, moved: Tensor | None, bag: Bag) -> Output:
        alpha = alpha if moved is None else alpha[inverse(moved)]  # in the order of the bag
        z = torch.cat(pooled_levels)
        level = self.level_of(bag) if self.levels == 1 else bag.depth - 1
        return Output(logits=self.head(z), embedding=z, attention=alpha, level=level)


def wrong_parents(slide_id: str, coarse_cells: Tensor, parent: Tensor, k: int) -> Tensor:
    """Parents permuted among the coarse tiles, siblings together: a function of slide and cells, not of their order."""
    by_rank = torch.argsort(cell_keys(coarse_cells))  # (R,) tile of each rank, row-major
    rank = torch.empty_like(by_rank)
    rank[by_rank] = torch.arange(len(by_rank), device=by_rank.device)
    order = torch.randperm(len(by_rank), generator=generator(slide_id, "shuffled-parents", k)).to(by_rank.device)
    return by_rank[order[rank[parent]]]


def _modules(owner: nn.Module) -> nn.ModuleList:
    assert isinstance(owner, nn.ModuleList)
    return owner
