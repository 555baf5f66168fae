"""Models that are solved: the solution against scikit-learn and naive sums, the strength against a search by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from marble.bags.store import BagStore
from marble.models import build
from marble.models.inference import infer
from marble.targets import SurvivalTime
from marble.tasks.classification import Classification
from marble.tasks.survival import Survival
from marble.training import ridge
from marble.training.closed_form import inner_folds
from marble.training.run import execute
from marble.training.run_folder import RunFolder
from tests.training.jobs import plan

PROBES = '[{ name = "probe" }, { name = "tiles" }]'


def rows(n: int, features: int, classes: int) -> tuple[Tensor, list[str]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, features))
    labels = np.argmax(x[:, :classes] + rng.normal(size=(n, classes)), axis=1)
    return torch.from_numpy(x - x.mean(axis=0)), [f"c{label}" for label in labels]


def classification_loss(labels: list[str], classes: int) -> ridge.RowsLoss:
    names = [f"s{i}" for i in range(len(labels))]
    task = Classification(tuple(f"c{k}" for k in range(classes)))
    criterion = task.criterion(dict(zip(names, labels, strict=True)), {name: name for name in names})
    return lambda at, logits: criterion.batch_loss([names[i] for i in at.tolist()], logits)


@pytest.mark.parametrize(("n", "features", "classes"), [(60, 5, 2), (30, 80, 2), (60, 7, 3)])
def test_classification_is_scikit_learns_and_the_strength_predicts_best(n: int, features: int, classes: int) -> None:
    x, labels = rows(n, features, classes)
    folds = [torch.arange(n)[k::5] for k in range(5)]
    found = ridge.solve(x, classification_loss(labels, classes), classes, intercept=True, folds=folds)
    truth = np.array([int(label[1:]) for label in labels])

    def oracle(strength: float, keep: np.ndarray) -> LogisticRegression:
        # Of two classes scikit-learn has one column, w_1 - w_0: half the penalty of our two.
        C = (2 if classes == 2 else 1) / strength
        return LogisticRegression(C=C, tol=1e-10, max_iter=10_000).fit(x.numpy()[keep], truth[keep])

    best = oracle(found.strength, np.arange(n)).predict_proba(x.numpy())
    ours = torch.softmax(x @ found.weight.t() + found.bias, dim=1).numpy()
    np.testing.assert_allclose(ours, best, atol=2e-5)
    scores = {}
    for strength in found.tried:
        out = [f.numpy() for f in folds]
        p = [oracle(strength, np.setdiff1d(np.arange(n), o)).predict_proba(x.numpy()[o]) for o in out]
        scores[strength] = sum(-np.log(q[np.arange(len(o)), truth[o]]).sum() for q, o in zip(p, out, strict=True)) / n
    for strength, score in scores.items():
        assert found.tried[strength] == pytest.approx(score, abs=1e-4)
    assert scores[found.strength] == pytest.approx(min(scores.values()), abs=1e-4)


def test_cox_is_where_the_penalised_partial_likelihood_is_flat() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 4))
    time = np.round(rng.exponential(np.exp(-x[:, 0])), 1) + 0.1  # with ties
    event = rng.random(40) < 0.7
    names = [f"s{i}" for i in range(40)]
    targets = {name: SurvivalTime(float(t), bool(e)) for name, t, e in zip(names, time, event, strict=True)}
    criterion = Survival().criterion(targets, {name: name for name in names})

    def loss(at: Tensor, logits: Tensor) -> Tensor:
        return criterion.batch_loss([names[i] for i in at.tolist()], logits)

    folds = [torch.arange(40)[k::5] for k in range(5)]
    found = ridge.solve(torch.from_numpy(x), loss, 1, intercept=False, folds=folds)
    w = found.weight.numpy()[0]
    slope = found.strength * w  # of the penalty
    for i in np.flatnonzero(event):
        at_risk = time >= time[i]
        share = np.exp(x[at_risk] @ w)
        slope = slope - x[i] + (share[:, None] * x[at_risk]).sum(axis=0) / share.sum()
    np.testing.assert_allclose(slope, 0, atol=1e-4)
    assert w[0] > 0.3


def test_slides_of_one_patient_share_an_inner_fold_and_classes_are_spread(tmp_path: Path) -> None:
    job = plan(tmp_path, patients=40)[0].job
    folds = inner_folds(job.train, seed=3)
    assert sorted(name for fold in folds for name in fold) == sorted({case.case_id for case in job.train})
    label = {case.case_id: case.target.label for case in job.train}
    for fold in folds:
        assert abs(sum(label[name] == "positive" for name in fold) - len(fold) / 2) <= 1
    assert inner_folds(tuple(reversed(job.train)), seed=3) == folds
    assert inner_folds(job.train, seed=4) != folds


@pytest.mark.parametrize("kind", ["burden", "survival", "quantity"])
def test_a_probe_is_fitted_sealed_and_asked_like_any_model(tmp_path: Path, kind: str) -> None:
    train = ', recipe = "common", survival_loss = "nll"' if kind == "survival" else ""
    probe, tiles = plan(tmp_path, kind, PROBES, patients=40, train=train)[:2]
    again = plan(tmp_path / "again", kind, PROBES, patients=40, train=train)[0]
    for planned in (probe, tiles, again):
        execute(planned)
    for name in ("model.safetensors", "predictions.csv", "history.csv"):
        assert (Path(probe.folder) / name).read_bytes() == (Path(again.folder) / name).read_bytes()
    run = RunFolder.open(probe.folder)
    metric = run.record["fit"]["selected_by"]
    assert run.record["fit"]["val"][metric] > 0.6
    assert "ridge strength" in run.record["fit"]["notes"][0]
    bag = BagStore(probe.job.store).load(probe.job.val[0].slides[0])
    said = infer(run.model(), bag)
    assert torch.allclose(said.attention, torch.tensor(1 / len(bag.finest)))
    assert said.order_sd == 0


def test_tiles_knows_the_amount_of_tissue_and_nothing_else(tmp_path: Path) -> None:
    planned = plan(tmp_path, models=PROBES, patients=24)[1]
    bag = BagStore(planned.job.store).load(planned.job.val[0].slides[0])
    model = build("tiles", planned.job.dim, 2)
    changed = bag.to(dtype=torch.float64)
    changed.levels[-1].features.mul_(3)
    assert torch.equal(model(bag).logits, model(changed).logits)
