"""How much of a network is listened to beside its linear term: the share that helps patients it was not trained on.

Training patients are dealt to inner folds; for each, a model of the same job is trained on the others and asked about
those left out. The share s is where the loss of s * network + linear term of all patients, each by the model that had
not seen them, is least: 1 where the network finds what no linear model of mean tokens can, 0 where it only learned
slides by heart. Where the recipe chooses an epoch, inner fits choose theirs on the validation patients, as the fit
itself does: on the patients left out they would choose what flatters the network. Else validation patients have no part
in it, and test patients never have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from marble.bags.augment import canonical
from marble.bags.store import BagStore
from marble.errors import InputError, RunError
from marble.models import BagModel
from marble.models.inference import infer
from marble.models.linear_term import mean_tokens
from marble.targets import Target
from marble.training.closed_form import inner_folds
from marble.training.job import CaseSpec, FitJob
from marble.training.prefetch import prefetch

#: the shares that are compared
SHARES = tuple(step / 20 for step in range(21))
#: with fewer patients left to train on, an inner fit says nothing
LEAST_PATIENTS = 4


@dataclass(frozen=True)
class Share:
    """Of a model beside its linear term, and how it was chosen."""

    value: float = 1.0
    note: str = ""


#: (slides, the network's logits (n, outputs), the linear term's (n, outputs)) of the patients left out by one inner fit
Said = tuple[list[str], Tensor, Tensor]


def choose_share(job: FitJob, folder: Path, fit: Callable[[FitJob, Path], BagModel]) -> Share:
    """The share that inner fits speak for. `fit` trains an inner job in a folder of its own below `folder`."""
    left_out = inner_folds(job.train, job.seed, job.recipe.share_folds)
    patients = {case.case_id for case in job.train}
    if len(left_out) < 2 or len(patients) - max(map(len, left_out)) < LEAST_PATIENTS:
        return Share(
            note=f"share of the model beside it 1: {len(patients)} training patients are too few to choose one"
        )
    losses = dict.fromkeys(SHARES, 0.0)
    try:
        for k, fold in enumerate(left_out):
            inner, asked = _without(job, fold, k)
            said = _said(inner, asked, fit(inner, folder / str(k)))
            for share, loss in _losses(inner, asked, said).items():
                losses[share] += loss
    except (InputError, RunError) as error:  # as where inner patients have no event; nothing else is excused
        return Share(note=f"share of the model beside it 1: an inner fit could not be made ({error})")
    best = min(SHARES, key=lambda share: losses[share])
    return Share(
        best, f"share of the model beside it {best:g}, chosen by {len(left_out)} inner folds of training patients"
    )


def _without(job: FitJob, fold: set[str], k: int) -> tuple[FitJob, tuple[CaseSpec, ...]]:
    """The same job for the patients who are not in the fold, and those who are."""
    kept = tuple(case for case in job.train if case.case_id not in fold)
    out = tuple(case for case in job.train if case.case_id in fold)
    recipe = replace(job.recipe, share_folds=0)
    # where nothing is chosen, its history is of the patients left out
    val = out if recipe.select_by == "last" else job.val
    inner = job.model_copy(update={"train": kept, "val": val, "recipe": recipe, "split": f"{job.split}-inner-{k}"})
    return inner, out


def _said(inner: FitJob, asked: Sequence[CaseSpec], model: BagModel) -> Said:
    """What a model says of the patients left out."""
    store = BagStore(inner.store)
    slides = sorted(slide for case in asked for slide in case.slides)
    weight, bias = model.linear_term.weight, model.linear_term.bias
    assert weight is not None
    assert bias is not None
    whole, term = [], []
    for _, bag in prefetch(store.load, slides):
        levels = model.levels_read(canonical(bag))
        term.append(weight.cpu().double() @ mean_tokens(levels, torch.float64) + bias.cpu().double())
        whole.append(infer(model, bag, inner.val_orders).logits.double())
    terms = torch.stack(term)
    return slides, torch.stack(whole) - terms, terms


def _losses(inner: FitJob, asked: Sequence[CaseSpec], said: Said) -> dict[float, float]:
    """The loss of the patients left out under every share."""
    slides, network, term = said
    criterion = inner.bound_task.build().criterion(*_known(inner.train))
    targets, patients = _known(asked)
    loss = criterion.held_out_loss({slide: targets[slide] for slide in slides}, patients)
    return {share: float(loss(share * network + term)) for share in SHARES}


def _known(cases: Sequence[CaseSpec]) -> tuple[dict[str, Target], dict[str, str]]:
    """The target and the patient of every slide."""
    targets = {slide: case.target.value() for case in cases for slide in case.slides}
    return targets, {slide: case.case_id for case in cases for slide in case.slides}
