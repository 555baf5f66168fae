"""Predictions by patient: every slide is a bag of its own, and a patient's slides are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marble.bags.store import BagStore
from marble.models import BagModel
from marble.models.inference import infer
from marble.tasks.base import Answered, Calibration, Task
from marble.tasks.criterion import Criterion
from marble.tasks.metric import Metric
from marble.training.job import CaseSpec
from marble.training.prefetch import prefetch


@dataclass(frozen=True, eq=False)
class CasePrediction:
    """What a model says about one patient (or one slide, in a cohort that is scored by slide)."""

    case: CaseSpec
    logits: Tensor  # (outputs,) mean over the case's slides
    readout: dict[str, float]
    order_sd: float  # the largest of its slides'


def predict_cases(
    model: BagModel, store: BagStore, cases: Sequence[CaseSpec], task: Task, orders: int
) -> list[CasePrediction]:
    """One prediction per case, in the order given. Targets are carried along, not looked at."""
    slides = [slide for case in cases for slide in case.slides]
    logits_of: dict[str, Tensor] = {}  # these and the spreads alone are kept: the rest is as large as the bags
    spread_of: dict[str, float] = {}
    for slide, bag in prefetch(store.load, slides):
        said = infer(model, bag, orders)
        logits_of[slide], spread_of[slide] = said.logits, said.order_sd
    rows = []
    for case in cases:
        logits = torch.stack([logits_of[slide] for slide in case.slides]).mean(dim=0)
        rows.append(CasePrediction(case, logits, task.readout(logits), max(spread_of[slide] for slide in case.slides)))
    return rows


def calibrated(rows: Sequence[CasePrediction], task: Task, calibration: Calibration) -> list[CasePrediction]:
    """The same predictions, read out as the run's calibration has it."""
    return [replace(row, readout=task.readout(row.logits, calibration)) for row in rows]


def answered(rows: Sequence[CasePrediction]) -> Answered:
    """Targets and logits together, as a calibration takes them."""
    logits = torch.stack([row.logits.double().cpu() for row in rows]).numpy()  # (n, outputs)
    return Answered([row.case.target.value() for row in rows], logits, [row.case.case_id for row in rows])


def columns(rows: Sequence[CasePrediction], task: Task) -> dict[str, np.ndarray]:
    """{column: (n,)} of the readouts, as metrics take them."""
    return {name: np.array([row.readout[name] for row in rows], dtype=np.float64) for name in task.columns}


def validate(
    model: BagModel, store: BagStore, cases: Sequence[CaseSpec], task: Task, criterion: Criterion, orders: int
) -> tuple[dict[str, Metric], Metric]:
    """Every metric of held-out cases, and their loss."""
    rows = predict_cases(model, store, cases, task, orders)
    targets = [row.case.target.value() for row in rows]
    logits = torch.stack([row.logits for row in rows])  # (n, outputs)
    return task.metrics(targets, columns(rows, task)), criterion.validation_loss(targets, logits)


def history_row(epoch: int, train_loss: float, metrics: dict[str, Metric], loss: Metric) -> dict[str, Any]:
    """One row of a history: what is undefined is said, not left out."""
    return {
        "epoch": epoch,
        "train_loss": train_loss,
        "val_loss": loss if isinstance(loss, float) else str(loss),
    } | {f"val_{name}": value if isinstance(value, float) else str(value) for name, value in metrics.items()}
