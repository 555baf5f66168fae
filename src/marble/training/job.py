"""`FitJob`: everything one fit may know. Test labels are not in it, so nothing in training can look at one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from marble.compute.limits import MAX_THREADS
from marble.models import Recipe
from marble.specs import Spec
from marble.targets import SurvivalTime, Target
from marble.tasks.base import Task
from marble.tasks.calling import DecisionRule
from marble.tasks.cross_entropy import ClassLoss, ClassWeights
from marble.tasks.registry import TaskName, build_task, task_class

#: the recipe a model was trained by; "solved" for one that needs none
TrainedBy = Literal["common", "small", "authors", "solved"]


class TargetSpec(Spec):
    """A class label, a number, or a time and whether the event happened."""

    label: str | None = None
    number: float | None = None
    time: float | None = None
    event: bool | None = None

    @staticmethod
    def of(target: Target) -> TargetSpec:
        if isinstance(target, SurvivalTime):
            return TargetSpec(time=target.time, event=target.event)
        return TargetSpec(label=target) if isinstance(target, str) else TargetSpec(number=target)

    def value(self) -> Target:
        if self.label is not None:
            return self.label
        if self.number is not None:
            return self.number
        assert self.time is not None
        assert self.event is not None
        return SurvivalTime(self.time, self.event)


class CaseSpec(Spec):
    """One patient with a known target."""

    case_id: str
    slides: tuple[str, ...] = Field(min_length=1)
    target: TargetSpec


class TaskSpec(Spec):
    """What is learned, and with which loss; each task takes the choices that concern it."""

    name: TaskName
    classes: tuple[str, ...] = ()
    decision: DecisionRule = "argmax"
    positive: str | None = None
    class_loss: ClassLoss = "cross-entropy"
    side_label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    class_weights: ClassWeights = "none"
    survival_loss: Literal["cox", "nll"] = "cox"
    bins: int = Field(default=4, ge=2)
    alpha: float = Field(default=0.0, ge=0, lt=1)
    risk_set: Literal["bank", "group"] = "bank"
    regression_loss: Literal["squared", "huber"] = "squared"
    target_mean: float = Field(default=0.0, description="of the training slides' numbers; put in by the fit")
    target_sd: float = Field(default=1.0, gt=0)
    group: int = Field(default=16, ge=2, description='slides in one graph, for risk_set = "group"')

    def bound(self, cases: Sequence[CaseSpec]) -> TaskSpec:
        """With what only the training slides' targets can say."""
        targets = [case.target.value() for case in cases for _ in case.slides]
        return self.model_copy(update=task_class(self.name).learned_from(targets))

    def build(self) -> Task:
        return build_task(self.name, self.model_dump())


class FitJob(Spec):
    """One model, one split, one seed.

    Args:
        model, options: what `marble.build` takes, without sizes.
        dim: width of the tokens.
        train, val: the patients training may learn from and select on.
        orders, val_orders: fixed token orders averaged in the final predictions and in validation.
        order_tolerance: how much of a final prediction, in logits, may be left to the choice of orders; fewer than
            `orders` are taken where validation says that they are enough for that. None takes them all.
        threads: BLAS threads; sums depend on their number, so it belongs to the result.
        store, bags_sha256: where the bags lie, and which they are.
    """

    model: str
    options: dict[str, Any] = Field(default_factory=dict)
    dim: int = Field(gt=0)
    task: TaskSpec
    recipe: Recipe
    recipe_name: TrainedBy = "common"
    store: str
    bags_sha256: str
    train: tuple[CaseSpec, ...] = Field(min_length=1)
    val: tuple[CaseSpec, ...] = Field(min_length=1)
    split: str
    seed: int = 0
    orders: int = Field(default=8, ge=1)
    val_orders: int = Field(default=2, ge=1)
    order_tolerance: float | None = Field(default=None, gt=0)
    threads: int = Field(default=1, ge=1, le=MAX_THREADS)

    def fingerprint(self) -> str:
        """Over all but the place of the bags, whose hash is in it: a study that is moved is still the same study."""
        return Spec.fingerprint(self.model_copy(update={"store": ""}))

    @property
    def bound_task(self) -> TaskSpec:
        """The task as this training set makes it."""
        return self.task.bound(self.train)
