"""The share of a network beside its linear term: where inner fits put it, and that a stopped fit comes to the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from marble import files
from marble.bags.store import BagStore
from marble.errors import InputError, IntegrityError, MarbleError
from marble.models import BagModel, build
from marble.models.inference import infer
from marble.targets import SurvivalTime
from marble.training.closed_form import inner_folds
from marble.training.fit import INNER, fit
from marble.training.job import FitJob
from marble.training.loop import TrainingLoop
from marble.training.share import SHARES, _without, choose_share
from tests.training.jobs import plan

CHOSEN = "chosen by 3 inner folds of training patients"
SMALL = '[{ name = "marble", project = 8, d_state = 8 }]'


def job_of(folder: Path, kind: str = "cross-scale", patients: int = 40, epochs: int = 2, train: str = "") -> FitJob:
    text = f', recipe = "small", linear_term = true, share_folds = 3{train}'
    return plan(folder, kind, SMALL, patients=patients, epochs=epochs, train=text)[0].job


class Fixed:
    """An inner fit that has learned a given multiple of the truth of every slide, also of those it never saw."""

    def __init__(self, job: FitJob, truth: float) -> None:
        self.truth, self.left_out = truth, list[set[str]]()
        self.of = {slide: float(case.target.label == "positive") for case in job.train for slide in case.slides}

    def __call__(self, inner: FitJob, folder: Path) -> BagModel:
        trained, asked = ({case.case_id for case in part} for part in (inner.train, inner.val))
        assert not trained & asked
        assert inner.recipe.share_folds == 0
        self.left_out.append(asked)
        model = build(inner.model, inner.dim, 2, **inner.options)
        dim = 2 * inner.dim
        model.linear_term.set(torch.zeros(2, dim), torch.zeros(2), 1.0, like=next(model.parameters()).detach())
        known = self

        def forward(bag: object) -> object:
            out = type(model).forward(model, bag)  # type: ignore[arg-type]
            sign = 2 * known.of[bag.slide_id] - 1  # type: ignore[attr-defined]
            return out.__class__(**{**out.__dict__, "logits": torch.tensor([-sign, sign]) * known.truth})

        model.forward = forward  # type: ignore[method-assign,assignment]
        return model


@pytest.mark.parametrize(("truth", "share"), [(2.0, 1.0), (-2.0, 0.0)])
def test_what_helps_patients_left_out_is_taken_whole_and_what_misleads_not_at_all(
    tmp_path: Path, truth: float, share: float
) -> None:
    job = job_of(tmp_path)
    trained = Fixed(job, truth)
    found = choose_share(job, tmp_path / "inner", trained)
    assert found.value == share
    assert f"{share:g}, chosen by 3 inner folds" in found.note
    assert trained.left_out == inner_folds(job.train, job.seed, 3)
    assert set().union(*trained.left_out) == {case.case_id for case in job.train}


def test_it_is_where_the_loss_of_patients_left_out_is_least(tmp_path: Path) -> None:
    job = job_of(tmp_path, "burden")
    found = choose_share(job, tmp_path / "inner", fit)
    store, losses = BagStore(job.store), np.zeros(len(SHARES))
    for k, fold in enumerate(inner_folds(job.train, job.seed, 3)):
        inner = job.model_copy(
            update={
                "train": tuple(case for case in job.train if case.case_id not in fold),
                "val": tuple(case for case in job.train if case.case_id in fold),
                "recipe": job.recipe.__class__(**{**job.recipe.__dict__, "share_folds": 0}),
                "split": f"{job.split}-inner-{k}",
            }
        )
        model = fit(inner, tmp_path / "again" / str(k)).eval()
        weight, bias = (getattr(model.linear_term, name).double() for name in ("weight", "bias"))
        for case in inner.val:
            for slide in case.slides:
                bag = store.load(slide)
                v = torch.cat([level.features.double().mean(dim=0) for level in bag.levels])
                term = weight @ v + bias
                network = infer(model, bag, job.val_orders).logits.double() - term
                truth = job.task.classes.index(str(case.target.label))
                losses += [float(-torch.log_softmax(s * network + term, 0)[truth]) for s in SHARES]
    assert found.value == SHARES[int(losses.argmin())]


def test_a_class_that_one_fold_lacks_is_weighed_as_in_training(tmp_path: Path) -> None:
    """Two patients of a class are in two of three folds; balanced weights are those of the patients trained on."""
    job = job_of(tmp_path, "burden", train=', class_weights = "balanced"')
    yes = [case for case in job.train if case.target.label == "positive"]
    job = job.model_copy(update={"train": tuple(case for case in job.train if case not in yes[2:])})
    found = choose_share(job, tmp_path / "inner", Fixed(job, 2.0))
    assert (found.value, found.note) == (
        1.0,
        "share of the model beside it 1, chosen by 3 inner folds of training patients",
    )


def test_time_bins_are_those_of_the_patients_trained_on(tmp_path: Path) -> None:
    """The events of a few patients left out would cut other bins, or none at all."""
    job = job_of(tmp_path, "survival", train=', survival_loss = "nll"')
    found = choose_share(job, tmp_path / "inner", fit)
    store, losses = BagStore(job.store), np.zeros(len(SHARES))
    for k, fold in enumerate(inner_folds(job.train, job.seed, 3)):
        inner, _ = _without(job, fold, k)
        model = fit(inner, tmp_path / "again" / str(k)).eval()
        known = [case.target for case in inner.train]
        edges = np.quantile(np.array([one.time for one in known if one.event]), [0.25, 0.5, 0.75])
        weight, bias = (getattr(model.linear_term, name).double() for name in ("weight", "bias"))
        for case in inner.val:
            target = case.target.value()
            assert isinstance(target, SurvivalTime)
            at = int((edges <= target.time).sum())
            for slide in case.slides:
                bag = store.load(slide)
                term = weight @ torch.cat([level.features.double().mean(dim=0) for level in bag.levels]) + bias
                network = infer(model, bag, job.val_orders).logits.double() - term
                for place, share in enumerate(SHARES):
                    hazard = torch.sigmoid(share * network + term).numpy()
                    past = np.prod(1 - hazard[: at if target.event else at + 1])
                    losses[place] -= np.log(past) + (np.log(hazard[at]) if target.event else 0.0)
    assert found.note.endswith(CHOSEN)
    assert found.value == SHARES[int(losses.argmin())]


@pytest.mark.parametrize("select_by", ["metric", "loss"])
def test_an_epoch_is_not_chosen_on_the_patients_who_judge_the_share(tmp_path: Path, select_by: str) -> None:
    job = job_of(tmp_path, "burden", train=f', select_by = "{select_by}"')
    asked: list[set[str]] = []

    def trained(inner: FitJob, folder: Path) -> BagModel:
        assert inner.val == job.val
        asked.append({case.case_id for case in job.train} - {case.case_id for case in inner.train})
        return fit(inner, folder)

    assert choose_share(job, tmp_path / "inner", trained).note.endswith(CHOSEN)
    assert asked == inner_folds(job.train, job.seed, 3)


def test_too_few_patients_choose_nothing(tmp_path: Path) -> None:
    job = job_of(tmp_path, "burden", patients=8)
    found = choose_share(job, tmp_path / "inner", lambda inner, folder: pytest.fail("trained"))
    assert found.value == 1.0
    assert "too few" in found.note


def test_an_inner_fit_that_cannot_be_made_is_noted_and_a_damaged_bag_is_not_excused(tmp_path: Path) -> None:
    job = job_of(tmp_path)

    def ending(error: MarbleError) -> BagModel:
        raise error

    found = choose_share(job, tmp_path / "inner", lambda inner, folder: ending(InputError("no event")))
    assert (found.value, "no event" in found.note) == (1.0, True)
    with pytest.raises(IntegrityError):
        choose_share(job, tmp_path / "inner", lambda inner, folder: ending(IntegrityError("changed")))


def test_a_stopped_fit_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path)
    fit(job, tmp_path / "whole")
    epochs = TrainingLoop._train_epoch
    for stop in (1, 3, 7, 8):  # of six inner epochs and two of its own; 7 is after the first of its own
        seen = 0

        def stopping(loop: TrainingLoop, at: int = stop) -> float:
            nonlocal seen
            seen += 1
            if seen == at:
                raise KeyboardInterrupt
            return epochs(loop)

        folder = tmp_path / f"stopped-{stop}"
        monkeypatch.setattr(TrainingLoop, "_train_epoch", stopping)
        with pytest.raises(KeyboardInterrupt):
            fit(job, folder)
        monkeypatch.setattr(TrainingLoop, "_train_epoch", epochs)
        fit(job, folder)
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
        assert (
            files.read_json(folder / "fit.json")["notes"] == files.read_json(tmp_path / "whole" / "fit.json")["notes"]
        )
        assert not (folder / INNER).exists()
