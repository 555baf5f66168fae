"""What is solved at once: a ridge regression of the training slides' vectors. Whole fits, and linear terms of others.

Validation patients have no part in it: they give a fit's one row of history its figures, as for every other model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from marble.bags.augment import canonical, generator
from marble.bags.store import BagStore
from marble.models import BagModel
from marble.models.linear_term import mean_tokens
from marble.models.statistics import Moments
from marble.models.zoo.probe import ClosedForm
from marble.targets import SurvivalTime
from marble.tasks.base import Task
from marble.tasks.cox import CoxGroup
from marble.tasks.criterion import Criterion, JointLoss
from marble.training.evaluate import history_row, validate
from marble.training.job import CaseSpec, FitJob
from marble.training.prefetch import prefetch
from marble.training.result import FitResult
from marble.training.ridge import Solution, solve

#: inner folds, by patient; fewer where there are fewer patients
FOLDS = 5


@dataclass(frozen=True)
class SolvedSlides:
    """The regression of the training slides' vectors v (n, F): logits = W (v - center) * scale + b."""

    center: Tensor  # (F,) mean over the slides
    scale: Tensor  # (F,) one over their SD
    solution: Solution
    loss: float  # of a training slide, in the mean
    folds: int

    @property
    def note(self) -> str:
        return f"ridge strength {self.solution.strength:.3g}, chosen by {self.folds} inner folds of training patients"


def solve_slides(
    job: FitJob, criterion: Criterion, vectors: Mapping[str, Tensor], model: BagModel, careful: bool
) -> SolvedSlides:
    """Solve for the training slides' `vectors` (F,) float64, the strength by patients left out among them.

    Neither a Cox risk nor a standardised number needs an intercept; the one logit of a yes-or-no question does.
    """
    slides = sorted(vectors)
    v = torch.stack([vectors[slide] for slide in slides])  # (n, F)
    moments = Moments.empty(v.shape[1])
    moments.add(v)
    center, scale = moments.mean, moments.scale()

    def loss_of(rows: Tensor) -> JointLoss:
        return criterion.joint_loss([slides[row] for row in rows.tolist()])

    patient_of = {slide: case.case_id for case in job.train for slide in case.slides}
    left_out = inner_folds(job.train, job.seed)
    folds = [torch.tensor([i for i, slide in enumerate(slides) if patient_of[slide] in fold]) for fold in left_out]
    x = (v - center) * scale
    intercept = model.outputs > 1 or criterion.has_intercept
    solution = solve(x, loss_of, model.outputs, intercept, folds, careful)
    with torch.no_grad():
        logits = x @ solution.weight.t() + solution.bias
    train_loss = float(loss_of(torch.arange(len(slides)))(logits)) / len(slides)
    return SolvedSlides(center, scale, solution, train_loss, len(folds))


def solve_fit(job: FitJob, task: Task, model: ClosedForm) -> FitResult:
    """Solve the model for the job's training slides."""
    began = time.perf_counter()
    store = BagStore(job.store)
    patient_of = {slide: case.case_id for case in job.train for slide in case.slides}
    targets = {slide: case.target.value() for case in job.train for slide in case.slides}
    criterion = task.criterion(targets, patient_of)
    model.double().eval()
    with torch.no_grad():
        vectors = {slide: model.describe(canonical(bag)) for slide, bag in prefetch(store.load, sorted(patient_of))}
    solved = solve_slides(job, criterion, vectors, model, careful=False)
    model.set_solution(solved.center, solved.scale, solved.solution.weight, solved.solution.bias)
    model.float()
    metrics, val_loss = validate(model, store, job.val, task, criterion, job.val_orders)
    row = history_row(1, solved.loss, metrics, val_loss) | {"strength": solved.solution.strength, "best": True}
    return FitResult(
        tensors=model.state_dict(),
        epochs=1,
        best_epoch=1,
        history=[row],
        notes=[solved.note],
        seconds=time.perf_counter() - began,
    )


def solve_linear_term(job: FitJob, criterion: Criterion, model: BagModel, share: float) -> str:
    """Give `model` its linear term, solved for the job's training slides, and its share; a note of how."""
    store = BagStore(job.store)
    slides = sorted(slide for case in job.train for slide in case.slides)
    vectors = {
        slide: mean_tokens(model.levels_read(canonical(bag)), torch.float64)
        for slide, bag in prefetch(store.load, slides)
    }
    solved = solve_slides(job, criterion, vectors, model, careful=True)
    weight = solved.solution.weight * solved.scale  # of v as it is: W (v - center) * scale + b
    bias = solved.solution.bias - weight @ solved.center
    model.linear_term.set(weight, bias, share, like=next(model.parameters()).detach())
    if not isinstance(criterion, CoxGroup):  # from a head of zeros, comparing a few patients with each other finds less
        model.start_beside_linear_term()
    return f"beside a linear term: {solved.note}"


def inner_folds(cases: tuple[CaseSpec, ...], seed: int, count: int = FOLDS) -> list[set[str]]:
    """Patients dealt to folds class by class (by event, by size), in an order drawn from the seed and their names."""
    stratum = {
        case.case_id: _stratum(case)
        for case in sorted(cases, key=lambda case: (case.case_id, case.slides), reverse=True)
    }
    drawn = sorted(stratum, key=lambda name: (stratum[name], generator(seed, name, "inner-fold").initial_seed()))
    folds: list[set[str]] = [set() for _ in range(min(count, len(drawn)))]
    for place, name in enumerate(drawn):
        folds[place % len(folds)].add(name)
    return folds


def _stratum(case: CaseSpec) -> tuple[float, str]:
    """What patients are sorted by before they are dealt."""
    target = case.target.value()
    if isinstance(target, SurvivalTime):
        return float(target.event), ""
    return (0.0, target) if isinstance(target, str) else (target, "")
