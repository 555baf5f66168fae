"""The experiment file: everything that belongs to the science, nothing that belongs to a machine.

Defaults are the paper's, so files stay short.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from marble.models.recipe import SMALL_GROUP, Recipe
from marble.specs import Spec
from marble.tasks.cross_entropy import ClassLoss, ClassWeights
from marble.tasks.registry import TaskName
from marble.training.trackers import TrackerName

SYNTHETIC = "synthetic:"
#: torch takes 64 bits, and every repeat adds to it
MAX_SEED = 2**62

RecipeName = Literal["auto", "common", "small", "authors"]
_Beta = Annotated[float, Field(ge=0, lt=1)]
_Epoch = Annotated[int, Field(ge=1)]


class CohortSpec(Spec):
    """Which table, and how its columns are to be read where that is not known from the format.

    `path` may be `synthetic:KIND` (a kind of `synthetic.cohort.KINDS`): a made-up cohort of `patients` patients.
    """

    path: str
    case: str | None = None
    case_is_slide: bool = False
    slide: str | None = None
    pseudonyms: str | None = None
    site: str | None = None
    label: str | None = None
    keep_as_class: tuple[str, ...] = ()
    target: str | None = None
    time: str | None = None
    event: str | None = None
    event_coding: Literal["1=event", "1=censored"] | None = None
    slide_table: str | None = None
    classes: tuple[str, ...] | None = None
    scored_by: Literal["case", "slide"] = "case"
    drop: tuple[Literal["missing", "other"], ...] = ()
    patients: int = Field(default=60, ge=6)


class BagsSpec(Spec):
    """Which bags: a store, and, where it holds several kinds, which of them."""

    store: str | None = None
    magnifications: tuple[float, ...] | None = None
    encoder: str | None = None


class SplitSpec(Spec):
    """How patients are divided; `scheme = "files"` takes somebody's split files."""

    scheme: Literal["holdout", "kfold", "files"] = "holdout"
    repeats: int | None = Field(default=None, ge=1, description="5 for holdout, 1 for kfold if not given")
    folds: int = Field(default=5, ge=3)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    by_site: bool = False
    files: str | None = None
    val_share: float | None = Field(default=None, gt=0, lt=1, description="of train, where the files have no val")
    val_as_test: bool = Field(
        default=False, description="score the files' val where they have no test; needs val_share"
    )
    drop_unknown: bool = Field(default=False, description="leave out names of the files that are not in the cohort")
    allow_leaks: bool = Field(
        default=False, description="slides of two parts may show the same tissue; every table says LEAKY"
    )


class TrainSpec(Spec):
    """Which recipe, and changes to it; what is not given stays as the recipe has it.

    `auto` is the small recipe for few training slides and the common one, the paper's, for more.
    `standardise` holds for every recipe; the other changes are not made to the authors' recipes.
    """

    recipe: RecipeName = "auto"
    standardise: bool | None = None
    optimizer: Literal["adamw", "adam", "lookahead-radam", "lookahead-adam"] | None = None
    lr: float | None = Field(default=None, gt=0)
    betas: tuple[_Beta, _Beta] | None = None
    weight_decay: float | None = Field(default=None, ge=0)
    decay_exempt: bool | None = Field(default=None, description="biases, norms and SSM parameters do not decay")
    schedule: Literal["warmup-cosine", "cosine", "constant", "multistep", "plateau"] | None = None
    lr_min: float | None = Field(default=None, ge=0, description="where the cosine ends")
    milestones: tuple[_Epoch, ...] | None = Field(default=None, description="epochs, of multistep")
    gamma: float | None = Field(default=None, gt=0, lt=1, description="a step down, of multistep and plateau")
    plateau_patience: int | None = Field(default=None, ge=1)
    warmup: int | None = Field(default=None, ge=0)
    epochs: int | None = Field(default=None, ge=1)
    patience: int | None = Field(default=None, ge=1)
    patience_from: int | None = Field(default=None, ge=0, description="no early stopping before this epoch")
    select_by: Literal["metric", "loss", "last"] | None = None
    choose_from: int | None = Field(default=None, ge=1, description="no epoch before this one is chosen")
    accumulate: int | None = Field(default=None, ge=1, description="slides of one step")
    accumulate_by: Literal["mean", "sum"] | None = None
    clip: float | None = Field(default=None, gt=0)
    clip_per_group: bool | None = None
    sampling: Literal["shuffle", "weighted", "fixed"] | None = None
    linear_term: bool | None = Field(default=None, description="add the probe's logits, solved before the first step")
    share_folds: int | None = Field(
        default=None, ge=0, description="inner folds that choose the model's share beside its linear term; 0: all of it"
    )
    members: int | None = Field(
        default=None, ge=1, le=32, description="networks that are trained apart, each with its seed, and asked together"
    )
    ema: float | None = Field(default=None, gt=0, lt=1)
    precision: Literal["float32", "tf32", "bfloat16"] | None = Field(default=None, description="of projections")
    class_loss: ClassLoss | None = None
    side_label_smoothing: float | None = Field(default=None, ge=0, lt=1)
    survival_loss: Literal["cox", "nll"] | None = None
    bins: int = Field(default=4, ge=2, description="of time, for survival_loss = 'nll'")
    alpha: float = Field(default=0.0, ge=0, lt=1, description="how much less censored cases count, likewise")
    risk_set: Literal["bank", "group"] | None = None
    group: int = Field(default=SMALL_GROUP, ge=2, description="slides in one graph, for risk_set = 'group'")
    regression_loss: Literal["squared", "huber"] = "squared"
    class_weights: ClassWeights = Field(default="none", description="or one number per class, in their order")
    orders: int = Field(default=8, ge=1)
    val_orders: int = Field(default=2, ge=1)
    order_tolerance: float | None = Field(
        default=None, gt=0, description="in logits; fewer orders are taken where validation says they are enough"
    )

    def changes(self) -> dict[str, Any]:
        """What is to be different from the recipe."""
        names = [field.name for field in fields(Recipe)]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class ModelSpec(Spec):
    """One row of the table. Keys that are not fields here are the model's own options.

    Args:
        name: a name in `MODELS`.
        label: what tables call it; made from the options if not given.
        recipe: of this model alone; `authors` trains it as its authors did.
        standardise: of this model alone.
        choose: {option: values}: every value is trained, and validation decides, separately in each split.
    """

    name: str
    label: str | None = None
    recipe: RecipeName | None = None
    standardise: bool | None = None
    choose: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _collect_options(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        rest = {key: value for key, value in values.items() if key not in cls.model_fields}
        return {**own, "options": {**own.get("options", {}), **rest}}

    @model_validator(mode="after")
    def _choices_are_told_apart(self) -> Self:
        """A run for each value: of no value there is none, and two equal ones would share a folder."""
        for option, values in self.choose.items():
            if not values:
                raise ValueError(f"choose.{option} of '{self.key}' has no value to train. Give values, or leave it out")
            names = [str(value) for value in values]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"choose.{option} of '{self.key}' has {twice} twice. Give every value once")
            if option in self.options:
                raise ValueError(f"'{self.key}' has {option} both as an option and in choose. Leave one of them out")
        return self

    @property
    def key(self) -> str:
        """A name for folders and tables that differs between entries that differ."""
        if self.label:
            return self.label
        settings = ",".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.name}({settings})" if settings else self.name


class ExperimentSpec(Spec):
    """The whole of an experiment file."""

    name: str | None = None
    cohort: str | CohortSpec
    task: TaskName
    decision: Literal["argmax", "threshold"] = Field(
        default="argmax", description="call the most probable class, or from a threshold on that validation chooses"
    )
    positive: str | None = Field(default=None, description="of two classes the one looked for; default: the second")
    unit: str = Field(default="", description="of the number predicted or of survival times; said by report and viewer")
    bags: BagsSpec = BagsSpec()
    split: SplitSpec = SplitSpec()
    train: TrainSpec = TrainSpec()
    models: tuple[ModelSpec, ...] = Field(min_length=1)
    baselines: tuple[str, ...] = Field(
        default=("probe", "tiles"), description="models that every table has beside its own; [] for none"
    )
    track: tuple[TrackerName, ...] = Field(default=(), description="of every run's history; no say in the results")
    paper: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="figures printed in the paper, by model and metric; shown in a marked column"
    )
