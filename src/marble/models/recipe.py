"""`Recipe`: how a model is trained. `COMMON` is the paper's, `small` the one for few slides."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

from marble.targets import TargetKind


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: everything that is not the model and not the data."""

    optimizer: Literal["adamw", "adam", "lookahead-radam", "lookahead-adam"] = "adamw"
    lr: float = 3e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-2
    schedule: Literal["warmup-cosine", "cosine", "constant", "multistep", "plateau"] = "warmup-cosine"
    lr_min: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.2
    plateau_patience: int = 5
    warmup: int = 5
    epochs: int = 30
    patience: int = 10
    patience_from: int = 0  # early stopping never before this epoch
    select_by: Literal["metric", "loss", "last"] = "metric"  # "last" chooses nothing: the last epoch is kept
    choose_from: int = 1  # no epoch before this one is chosen; of a shorter training the last one
    accumulate: int = 1
    accumulate_by: Literal["mean", "sum"] = "mean"  # of the slides of one step
    clip: float | None = 1.0
    clip_per_group: bool = False
    class_loss: Literal["cross-entropy", "multi-label-bce", "cross-entropy-of-probabilities", "bernoulli"] = (
        "cross-entropy"
    )
    side_label_smoothing: float = 0.0  # of the cross-entropy of `Output.side`; the main prediction's has none
    survival_loss: Literal["cox", "nll"] = "cox"
    risk_set: Literal["bank", "group"] = "bank"  # of Cox: the whole training cohort, or the slides of one graph
    sampling: Literal["shuffle", "weighted", "fixed"] = "shuffle"
    precision: Literal["float32", "tf32", "bfloat16", "mixed-float16"] = "float32"
    standardise: bool = False  # tokens by the training slides' mean and SD, per level and feature
    linear_term: bool = False  # logits beside the probe's, which is solved before the first step and left alone
    share_folds: int = 0  # inner folds of training patients that choose the model's share beside the term; 0: all of it
    members: int = 1  # networks that are trained apart, each with a seed of its own; their mean is the model
    ema: float | None = None  # decay of the averaged weights that are validated and kept; None keeps the weights
    decay_exempt: bool = True  # biases, norms and SSM parameters are kept out of weight decay


COMMON = Recipe()

#: training slides below which the small recipe is the default: what it was searched for and shown on
SMALL_BELOW = 300
#: steps of the small recipe for each root of a training slide, and its least and most epochs: more steps on few slides
#: learn by heart, fewer on many do not find what only tiles together tell
SMALL_STEPS, SMALL_EPOCHS = 64, (10, 20)
#: slides of one of its steps for survival: a patient's time says little by itself
SMALL_GROUP = 16
SMALL_SURVIVAL_EPOCHS = 40


def small(slides: int, target: TargetKind = "classification") -> Recipe:
    """The recipe for few slides, of which `slides` are trained on."""
    least, most = SMALL_EPOCHS
    in_groups = target == "survival"
    return Recipe(
        lr=3e-4,
        warmup=1,
        epochs=SMALL_SURVIVAL_EPOCHS if in_groups else min(most, max(least, ceil(SMALL_STEPS / sqrt(slides)))),
        select_by="last",
        risk_set="group" if in_groups else "bank",
        standardise=True,
        linear_term=True,
        share_folds=3,
    )
