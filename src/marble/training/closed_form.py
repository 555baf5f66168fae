"""Fits of models that are solved at once: the training slides' vectors, a ridge regression, one row of history.

Validation patients have no part in it: they give the row its figures, as for every other model.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from marble.bags.augment import canonical, generator
from marble.bags.store import BagStore
from marble.models.statistics import Moments
from marble.models.zoo.probe import ClosedForm
from marble.targets import SurvivalTime
from marble.tasks.base import Task
from marble.training.evaluate import history_row, validate
from marble.training.job import CaseSpec, FitJob
from marble.training.prefetch import prefetch
from marble.training.result import FitResult
from marble.training.ridge import solve

#: inner folds, by patient; fewer where there are fewer patients
FOLDS = 5


def solve_fit(job: FitJob, task: Task, model: ClosedForm) -> FitResult:
    """Solve the model for the job's training slides, with a strength chosen by patients left out among them."""
    began = time.perf_counter()
    store = BagStore(job.store)
    patient_of = {slide: case.case_id for case in job.train for slide in case.slides}
    targets = {slide: case.target.value() for case in job.train for slide in case.slides}
    criterion = task.criterion(targets, patient_of)
    slides = sorted(patient_of)
    model.double().eval()
    with torch.no_grad():
        described = [model.describe(canonical(bag)) for _, bag in prefetch(store.load, slides)]
    v = torch.stack(described)  # (n, F)
    moments = Moments.empty(v.shape[1])
    moments.add(v)
    center, scale = moments.mean, moments.scale()

    def loss(rows: Tensor, logits: Tensor) -> Tensor:
        return criterion.batch_loss([slides[row] for row in rows.tolist()], logits)

    left_out = inner_folds(job.train, job.seed)
    folds = [torch.tensor([i for i, slide in enumerate(slides) if patient_of[slide] in fold]) for fold in left_out]
    x = (v - center) * scale
    solution = solve(x, loss, task.outputs, intercept=model.head.bias is not None, folds=folds)
    with torch.no_grad():
        logits = x @ solution.weight.t() + solution.bias
    model.set_solution(center, scale, solution.weight, solution.bias)
    model.float()
    metrics, val_loss = validate(model, store, job.val, task, criterion, job.val_orders)
    train_loss = float(loss(torch.arange(len(slides)), logits)) / len(slides)
    row = history_row(1, train_loss, metrics, val_loss) | {"strength": solution.strength, "best": True}
    return FitResult(
        tensors=model.state_dict(),
        epochs=1,
        best_epoch=1,
        history=[row],
        notes=[f"ridge strength {solution.strength:.3g}, chosen by {len(folds)} inner folds of training patients"],
        seconds=time.perf_counter() - began,
    )


def inner_folds(cases: tuple[CaseSpec, ...], seed: int) -> list[set[str]]:
    """Patients dealt to folds class by class (by event, by size), in an order drawn from the seed and their names."""
    stratum = {
        case.case_id: _stratum(case)
        for case in sorted(cases, key=lambda case: (case.case_id, case.slides), reverse=True)
    }
    drawn = sorted(stratum, key=lambda name: (stratum[name], generator(seed, name, "inner-fold").initial_seed()))
    folds: list[set[str]] = [set() for _ in range(min(FOLDS, len(drawn)))]
    for place, name in enumerate(drawn):
        folds[place % len(folds)].add(name)
    return folds


def _stratum(case: CaseSpec) -> tuple[float, str]:
    """What patients are sorted by before they are dealt."""
    target = case.target.value()
    if isinstance(target, SurvivalTime):
        return float(target.event), ""
    return (0.0, target) if isinstance(target, str) else (target, "")
