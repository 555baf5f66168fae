"""The contract every model keeps: `forward(bag) -> Output`, one bag at a time.

No masks, flags or labels go into `forward`: training, prediction and heatmaps call the same line. What a model wants
done to a bag before a training step it says in `augment`; what its authors did to train it is its `authors_recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from marble.bags.augment import canonical
from marble.bags.bag import Bag, Level
from marble.errors import BagError, InputError
from marble.models.linear_term import LinearTerm
from marble.models.recipe import COMMON, Recipe
from marble.models.statistics import InputStatistics, Moments
from marble.targets import TargetKind

#: parameters of state-space layers that weight decay must not touch, whatever their shape
NO_DECAY = ("A_log", "D", "dt_bias", "A_b_log", "D_b", "log_A_real", "A_imag", "C", "log_dt")

#: what a model reads: a bag, or tokens (N, D) of one level
BagOrTokens: TypeAlias = Bag | Tensor | NDArray[Any]


@dataclass(frozen=True)
class Side:
    """A further supervised prediction of the same target (an instance stream, a pseudo-bag)."""

    name: str
    logits: Tensor  # (outputs,)
    weight: float = 1.0


@dataclass(frozen=True)
class Output:
    """What a model says about one bag."""

    logits: Tensor  # (outputs,)
    embedding: Tensor  # (E,) the slide's vector before the last layer
    attention: Tensor  # (T,) >= 0, sums to 1 over bag.levels[level]
    level: int
    side: tuple[Side, ...] = ()
    logits_weight: float = 1.0  # of the main prediction, beside those of `side`
    hidden: dict[str, Tensor] = field(default_factory=dict)  # what `extra_loss` needs, nothing else reads it


class BagModel(nn.Module):
    """Base of every model.

    Args:
        dim: width of the tokens.
        outputs: number of logits (classes, 1 for a Cox risk, bins for discrete time).
        level: which level a single-scale model reads; counted from the finest if negative.
    """

    #: whether the order of tokens changes the result; then a prediction averages over fixed orders
    order_sensitive: ClassVar[bool] = False
    #: whether its `extra_loss` looks at the output of the slide's class, so that every class must have one
    output_per_class: ClassVar[bool] = False
    #: how the model's authors trained it (`recipe = "authors"`)
    authors_recipe: ClassVar[Recipe] = COMMON
    #: how they trained it for survival, and with which of its options, where they did so in another way
    authors_survival_recipe: ClassVar[Recipe | None] = None
    authors_survival_options: ClassVar[Mapping[str, Any]] = {}
    #: the options it is given by `recipe = "small"`
    small_options: ClassVar[Mapping[str, Any]] = {}
    #: prefix in the original repository's state dict -> prefix in ours
    reference_names: ClassVar[Mapping[str, str]] = {}
    #: prefixes of tensors in original checkpoints that are not part of the model
    reference_ignored: ClassVar[tuple[str, ...]] = ()

    def __init__(self, dim: int, outputs: int, level: int = -1) -> None:
        super().__init__()
        for name, size in (("dim", dim), ("outputs", outputs)):
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                raise InputError(f"{name} must be a whole number from 1 on, got {size!r}")
        self.dim, self.outputs, self.level = dim, outputs, level
        # both are empty, so that tokens are taken as they are and logits are the model's own, unless training sets them
        self.inputs = InputStatistics()
        self.linear_term = LinearTerm()

    def forward(self, bag: Bag) -> Output:
        raise NotImplementedError

    @overload
    def __call__(self, bag: BagOrTokens) -> Output: ...

    @overload
    def __call__(self, bag: Sequence[BagOrTokens]) -> list[Output]: ...

    def __call__(self, bag: BagOrTokens | Sequence[BagOrTokens]) -> Output | list[Output]:
        """An output for a bag, or for tokens (N, D) of one level; a list of outputs for a list."""
        if isinstance(bag, list | tuple):
            return [self(one) for one in bag]
        read = bag_of(bag)
        output: Output = super().__call__(read)
        if not self.linear_term.is_set:
            return output
        return replace(output, logits=self.linear_term(output.logits, self.levels_read(canonical(read))))

    def levels_read(self, bag: Bag) -> tuple[Level, ...]:
        """The levels of `bag` that the model reads, coarsest first."""
        return (self.pick(bag),)

    def start_beside_linear_term(self) -> None:
        """Weights before the first step, where there is a linear term; a model may choose to say nothing at first."""

    def augment(self, bag: Bag, rng: torch.Generator) -> Bag:
        """What is done to a bag before each training step; nothing, unless the model's paper says so."""
        return bag

    def coarse_tokens(self, seen: Bag) -> Tensor:
        """(T, W) what the model makes of the finest tiles of `seen`, which holds only the coarse levels of a bag.

        Models that look at nothing but the finest level make nothing of them: the tokens, standardised if it is.
        """
        return self.cast(seen.finest, seen, seen.depth - 1)

    def extra_loss(self, out: Output, label: int) -> Tensor | None:
        """A further loss that needs the class label (CLAM's instance clustering); None for everyone else."""
        return None

    @classmethod
    def as_authors(cls, targets: TargetKind) -> tuple[Recipe, dict[str, Any]]:
        """The authors' recipe for this kind of targets, and the options they gave the model for it."""
        if targets != "survival":
            return cls.authors_recipe, {}
        return cls.authors_survival_recipe or cls.authors_recipe, dict(cls.authors_survival_options)

    @classmethod
    def reference_sizes(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        """(dim, outputs) of an original checkpoint, read from its tensors."""
        raise InputError(f"{cls.__name__} has no original checkpoints to load")

    def optimizer_groups(self) -> list[list[tuple[str, nn.Parameter]]]:
        """Named parameters in groups that are clipped apart from each other (DTFD's two tiers); one by default."""
        return [list(self.named_parameters())]

    @property
    def device(self) -> torch.device:
        """Where its weights are, and bags must be."""
        return next(self.parameters()).device

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def standardise(self, moments: list[Moments]) -> None:
        """From now on see every token less its level's mean and divided by its level's SD."""
        self.inputs.set(moments, like=next(self.parameters()).detach())

    # ---- for subclasses ----------------------------------------------------------------------------------------

    def tokens(self, bag: Bag) -> Tensor:
        """(T, D) tokens of this model's level, in the dtype of its weights."""
        return self.cast(self.pick(bag), bag, self.level_of(bag))

    def pick(self, bag: Bag) -> Level:
        return bag.levels[self.level_of(bag)]

    def level_of(self, bag: Bag) -> int:
        """This model's level as an index into `bag.levels`."""
        k = self.level if self.level >= 0 else bag.depth + self.level
        if not 0 <= k < bag.depth:
            raise BagError(f"model reads level {self.level}, but the bag has {bag.depth} levels", where=bag.slide_id)
        return k

    def cast(self, level: Level, bag: Bag, k: int) -> Tensor:
        """(T, D) the tokens of `level`, which is level k of the bag or a part of it: standardised if the model is."""
        self.check_width(level, bag)
        tokens: Tensor = self.inputs(level.features.to(next(self.parameters()).dtype), k, bag.slide_id)
        return tokens

    def check_width(self, level: Level, bag: Bag) -> None:
        if level.dim != self.dim:
            raise BagError(
                f"tokens are {level.dim} wide, the model was built for {self.dim}",
                where=bag.slide_id,
                hint="Take bags of the encoder the model was built for, or build one with dim= their width",
            )


def bag_of(given: Any) -> Bag:
    """A bag as it is; tokens (N, D), of torch or numpy, as a bag of one level."""
    if isinstance(given, Bag):
        return given
    if isinstance(given, Tensor | np.ndarray):
        return Bag.of_tokens(given)
    raise InputError(f"a model reads a bag or tokens (N, D), got {type(given).__name__}")


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two optimiser groups: weights of two or more axes decay; biases, norms and SSM parameters do not."""
    decay: list[nn.Parameter] = []
    keep: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        exempt = parameter.ndim < 2 or name.rsplit(".", 1)[-1] in NO_DECAY
        (keep if exempt else decay).append(parameter)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": keep, "weight_decay": 0.0}]
