"""Models that are solved: the solution against scikit-learn and naive sums, the strength against a search by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from marble.bags.bag import Bag, Level
from marble.bags.store import BagStore
from marble.errors import RunError
from marble.models import build
from marble.models.inference import infer
from marble.models.zoo.marble import Marble
from marble.targets import SurvivalTime
from marble.tasks.classification import Classification
from marble.tasks.criterion import JointLoss
from marble.tasks.survival import Survival
from marble.training import ridge
from marble.training.closed_form import inner_folds, solve_linear_term
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
    return lambda at: criterion.joint_loss([names[i] for i in at.tolist()])


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


@pytest.mark.parametrize("turned", [0, 25])
def test_a_careful_choice_fits_nothing_where_nothing_is_to_be_seen(turned: int) -> None:
    x, labels = rows(50, 40, 3)
    labels = labels[turned:] + labels[:turned]  # turned, they belong to other rows
    folds = [torch.arange(50)[k::5] for k in range(5)]
    loss = classification_loss(labels, 3)
    best = ridge.solve(x, loss, 3, intercept=True, folds=folds).strength
    careful = ridge.solve(x, loss, 3, intercept=True, folds=folds, careful=True).strength
    truth = np.array([int(label[1:]) for label in labels])

    def left_out(strength: float) -> np.ndarray:
        found = []
        for out in (fold.numpy() for fold in folds):
            kept = np.setdiff1d(np.arange(50), out)
            model = LogisticRegression(C=1 / strength, tol=1e-10, max_iter=10_000).fit(x.numpy()[kept], truth[kept])
            found.append(-np.log(model.predict_proba(x.numpy()[out])[np.arange(len(out)), truth[out]]).sum())
        return np.array(found)

    strongest = 40 * max(ridge.STRENGTHS)
    apart = left_out(strongest) - left_out(best)
    seen = apart.sum() > np.sqrt(5) * apart.std(ddof=1)
    assert seen == (turned == 0)
    assert careful == (best if seen else strongest)


def test_cox_is_where_the_penalised_partial_likelihood_is_flat() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 4))
    time = np.round(rng.exponential(np.exp(-x[:, 0])), 1) + 0.1  # with ties
    event = rng.random(40) < 0.7
    names = [f"s{i}" for i in range(40)]
    targets = {name: SurvivalTime(float(t), bool(e)) for name, t, e in zip(names, time, event, strict=True)}
    criterion = Survival().criterion(targets, {name: name for name in names})

    def loss_of(at: Tensor) -> JointLoss:
        return criterion.joint_loss([names[i] for i in at.tolist()])

    folds = [torch.arange(40)[k::5] for k in range(5)]
    found = ridge.solve(torch.from_numpy(x), loss_of, 1, intercept=False, folds=folds)
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


@pytest.mark.parametrize(
    ("kind", "train"),
    [("burden", ""), ("survival", ""), ("survival", ', survival_loss = "nll", bins = 3'), ("quantity", "")],
)
def test_a_linear_term_is_the_probe_and_training_starts_there(tmp_path: Path, kind: str, train: str) -> None:
    (planned,) = plan(
        tmp_path, kind, models='[{ name = "marble", project = 8 }]', train=", linear_term = true" + train
    )[:1]
    job = planned.job
    task = job.bound_task.build()
    criterion = task.criterion(
        {slide: case.target.value() for case in job.train for slide in case.slides},
        {slide: case.case_id for case in job.train for slide in case.slides},
    )
    model = build(job.model, job.dim, task.outputs, **job.options).eval()
    note = solve_linear_term(job, criterion, model, share=1.0)
    assert note.startswith("beside a linear term: ridge strength")
    store = BagStore(job.store)
    slides = sorted(slide for case in job.train for slide in case.slides)
    v = np.stack(
        [np.concatenate([x.features.double().numpy().mean(axis=0) for x in store.load(s).levels]) for s in slides]
    )
    x = torch.from_numpy((v - v.mean(axis=0)) / v.std(axis=0))
    left_out = inner_folds(job.train, job.seed)
    patient_of = {slide: case.case_id for case in job.train for slide in case.slides}
    folds = [torch.tensor([i for i, s in enumerate(slides) if patient_of[s] in fold]) for fold in left_out]
    found = ridge.solve(
        x,
        lambda rows: criterion.joint_loss([slides[row] for row in rows.tolist()]),
        task.outputs,
        intercept=task.outputs > 1,
        folds=folds,
        careful=True,
    )
    expected = (x @ found.weight.t() + found.bias).numpy()
    said = np.stack([infer(model, store.load(slide), orders=1).logits.numpy() for slide in slides])
    np.testing.assert_allclose(said, expected, rtol=1e-3, atol=1e-3)


def test_where_patients_are_compared_in_groups_a_head_is_left_as_it_was(tmp_path: Path) -> None:
    models, train = '[{ name = "marble", project = 8 }]', ', linear_term = true, risk_set = "group", group = 4'
    job = plan(tmp_path, "survival", models=models, train=train)[0].job
    targets = {slide: case.target.value() for case in job.train for slide in case.slides}
    patients = {slide: case.case_id for case in job.train for slide in case.slides}
    model = build(job.model, job.dim, 1, **job.options)
    assert isinstance(model, Marble)
    before = model.head.weight.clone()
    solve_linear_term(job, job.bound_task.build().criterion(targets, patients), model, share=1.0)
    assert torch.equal(model.head.weight, before)
    assert model.linear_term.is_set


def test_a_sum_of_discrete_losses_is_solved_at_once() -> None:
    rng = np.random.default_rng(3)
    targets = {f"s{i}": SurvivalTime(float(t), bool(i % 3)) for i, t in enumerate(rng.exponential(size=20) + 0.1)}
    criterion = Survival(loss="nll", bins=4, alpha=0.2).criterion(targets, {name: name for name in targets})
    logits = torch.from_numpy(rng.normal(size=(20, 4)))
    one_by_one = sum(float(criterion.loss(name, row)) for name, row in zip(targets, logits, strict=True))
    assert float(criterion.joint_loss(list(targets))(logits)) == pytest.approx(one_by_one, rel=1e-12)


def test_the_one_logit_of_a_yes_or_no_question_says_how_common_yes_is(tmp_path: Path) -> None:
    """Where the intercept's slope is 0, the mean probability of the training slides is their share of yes."""
    train = ', class_loss = "bernoulli", linear_term = true'
    job = plan(tmp_path, models='[{ name = "abmil", hidden = 8 }]', patients=32, train=train)[0].job
    yes = [case for case in job.train if case.target.label == "positive"]
    few = [case for case in job.train if case.target.label == "negative"][:3]
    job = job.model_copy(update={"train": (*yes, *few)})
    task = job.bound_task.build()
    targets = {slide: case.target.value() for case in job.train for slide in case.slides}
    patients = {slide: case.case_id for case in job.train for slide in case.slides}
    model = build(job.model, job.dim, task.outputs, **job.options).eval()
    assert task.outputs == 1
    solve_linear_term(job, task.criterion(targets, patients), model, share=0.0)
    store = BagStore(job.store)
    said = {slide: float(torch.sigmoid(infer(model, store.load(slide), orders=1).logits)) for slide in targets}
    share = np.mean([targets[slide] == "positive" for slide in targets])
    assert share > 0.7
    assert np.mean(list(said.values())) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("loss", ["bernoulli", "cross-entropy"])
def test_marble_says_how_common_a_class_is_where_its_tokens_say_nothing(tmp_path: Path, loss: str) -> None:
    """Of one level without a projection, tokens of zeros leave nothing but the head's own constant."""
    models = '[{ name = "marble", levels = 1, d_state = 4, headdim = 4 }]'
    train = f', class_loss = "{loss}"'
    for kind, has_intercept in (("burden", True), ("survival", False)):
        job = plan(tmp_path / kind, kind, models=models, train=train if kind == "burden" else "")[0].job
        model = build(job.model, job.dim, job.task.build().outputs, **job.options).eval()
        nothing = Bag("s", [Level(torch.zeros(3, job.dim), torch.tensor([[0, 0], [0, 1], [1, 0]]))])
        assert bool(model(nothing).logits.abs().sum() > 0) == has_intercept
        restored = build(job.model, job.dim, job.task.build().outputs, **job.options)
        restored.load_state_dict(model.state_dict())


def test_a_loss_that_is_not_convex_is_not_solved() -> None:
    task = Classification(("a", "b"), loss="cross-entropy-of-probabilities")
    criterion = task.criterion({"s": "a", "t": "b"}, {"s": "s", "t": "t"})
    with pytest.raises(RunError, match="not convex"):
        criterion.joint_loss(["s", "t"])
