"""What the authors' recipes ask of training, each field against torch, scikit-learn or a formula written out."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch import Tensor
from torch.nn import functional

from marble.attribution import score_of
from marble.bags.augment import canonical
from marble.bags.store import BagStore
from marble.bags.tensors import map_file
from marble.errors import RunError, SpecError
from marble.models import COMMON, MODELS, BagModel, Recipe, build, model_class
from marble.tasks.classification import Classification
from marble.training import precision
from marble.training.loop import TrainingLoop
from marble.training.optim import Optimizer
from marble.training.run import PlannedRun, execute
from tests.bags.making import random_bag
from tests.training.jobs import plan, with_recipe

MEAN = '[{ name = "mean", hidden = 8, dropout = 0.0 }]'
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


# ---- losses --------------------------------------------------------------------------------------------------------


def test_side_predictions_alone_have_smoothed_labels() -> None:
    task = Classification(("a", "b", "c"), side_label_smoothing=0.1)
    criterion = task.criterion({"s": "b"}, {"s": "p"})
    logits = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    log_p = logits - logits.exp().sum().log()
    assert float(criterion.loss("s", logits, "level0")) == pytest.approx(float(-0.9 * log_p[1] - 0.1 * log_p.mean()))
    assert float(criterion.loss("s", logits)) == pytest.approx(float(-log_p[1]))
    assert criterion.validation_loss(["b"], logits[None]) == pytest.approx(float(-log_p[1]))


@pytest.mark.parametrize("changes", [{"side_label_smoothing": 1.0}, {"side_label_smoothing": 0.1, "loss": "bernoulli"}])
def test_smoothing_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="side_label_smoothing"):
        Classification(("a", "b"), **changes)


def test_bernoulli_of_two_classes_is_one_output_and_its_log_loss() -> None:
    task = Classification(("no", "yes"), loss="bernoulli")
    assert task.outputs == 1
    logits = torch.tensor([[-2.0], [0.4], [1.7], [-0.1]], dtype=torch.float64)
    targets = ["no", "yes", "no", "yes"]
    p = 1 / (1 + np.exp(-logits[:, 0].numpy()))
    criterion = task.criterion({str(i): target for i, target in enumerate(targets)}, {})
    assert criterion.validation_loss(targets, logits) == pytest.approx(log_loss(targets, p), rel=1e-12)
    for i, (x, p_yes) in enumerate(zip(logits, p, strict=True)):
        assert float(criterion.loss(str(i), x)) == pytest.approx(-log(p_yes if targets[i] == "yes" else 1 - p_yes))
        readout = task.readout(x)
        assert readout == pytest.approx({"p_no": 1 - p_yes, "p_yes": p_yes}, rel=1e-12)
    auc = task.metrics(targets, {"p_no": 1 - p, "p_yes": p})["auc"]
    assert auc == pytest.approx(0.5)  # of the pairs (yes, no): 0.4 > -2, 0.4 < 1.7, -0.1 > -2, -0.1 < 1.7


def test_bernoulli_clamps_probabilities_as_the_originals_do() -> None:
    criterion = Classification(("no", "yes"), loss="bernoulli").criterion({"s": "no"}, {})
    logits = torch.tensor([30.0], requires_grad=True)
    loss = criterion.loss("s", logits)
    assert float(loss.detach()) == pytest.approx(-log(1e-5), rel=1e-3)  # 1 - (1 - 1e-5) in float32
    torch.autograd.backward(loss)
    assert logits.grad is not None
    assert float(logits.grad) == 0.0


def test_bernoulli_of_more_classes_asks_about_each() -> None:
    task = Classification(("a", "b", "c"), class_weights="balanced", loss="bernoulli")
    assert task.outputs == 3
    criterion = task.criterion({"1": "a", "2": "a", "3": "b", "4": "c"}, {})
    logits = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    p = torch.sigmoid(logits)
    by_hand = -(torch.log(1 - p[0]) + torch.log(1 - p[1]) + torch.log(p[2])) / 3
    assert float(criterion.loss("4", logits)) == pytest.approx(4 / 3 * float(by_hand))
    assert task.readout(logits)["p_b"] == pytest.approx(float(p[1] / p.sum()))


def test_one_output_is_explained_for_both_classes() -> None:
    task = Classification(("no", "yes"), loss="bernoulli")
    logits = torch.tensor([0.7])
    assert [float(score_of(task, name).of(logits)) for name in ("no", "yes")] == pytest.approx([-0.7, 0.7])


# ---- the loop ------------------------------------------------------------------------------------------------------


def _planned(folder: Path, models: str = MEAN, **changes: Any) -> PlannedRun:
    (planned,) = plan(folder, models=models)[:1]
    plain = {"schedule": "constant", "warmup": 0, "clip": None, "optimizer": "adam", "decay_exempt": False, "lr": 1e-2}
    return with_recipe(planned, **{**plain, **changes})


def _trained(planned: PlannedRun) -> dict[str, Tensor]:
    execute(planned)
    return map_file(Path(planned.folder) / "model.safetensors")[0]


def _start(planned: PlannedRun) -> TrainingLoop:
    """The loop before its first epoch, with the weights a fit begins with."""
    from marble.bags.augment import generator

    job = planned.job
    task = job.task.build()
    torch.manual_seed(int(generator(job.seed, "init").initial_seed() % 2**63))
    model = build(job.model, job.dim, task.outputs, **job.options)
    return TrainingLoop(job, Path(planned.folder), task, model, None)


@pytest.mark.parametrize("by", ["mean", "sum"])
def test_slides_of_one_step_are_averaged_or_added_in_a_fixed_order(tmp_path: Path, by: str) -> None:
    planned = _planned(
        tmp_path, sampling="fixed", accumulate=4, accumulate_by=by, weight_decay=0.1, epochs=1, choose_from=1
    )
    loop = _start(planned)
    model, job = loop.model, planned.job
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)
    store = BagStore(job.store)
    label = {s: job.task.classes.index(str(c.target.label)) for c in job.train for s in c.slides}
    slides = sorted(label)
    for first in range(0, len(slides), 4):
        for slide in slides[first : first + 4]:
            loss = functional.cross_entropy(
                model(canonical(store.load(slide))).logits[None], torch.tensor([label[slide]])
            )
            torch.autograd.backward(loss / (4 if by == "mean" else 1))
        optimizer.step()
        optimizer.zero_grad()
    for name, tensor in _trained(planned).items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_a_fixed_order_does_not_change_from_epoch_to_epoch(tmp_path: Path) -> None:
    fixed, shuffled = (_start(_planned(tmp_path / how, sampling=how)) for how in ("fixed", "shuffle"))
    for loop, same in ((fixed, True), (shuffled, False)):
        first = loop._order()
        loop.at.epoch += 1
        assert (loop._order() == first) is same
    assert fixed._order() == sorted(fixed._order())


@pytest.mark.parametrize(("first", "chosen"), [(3, {3, 4}), (9, {4})])
def test_no_epoch_is_chosen_before_the_first_that_may_be(tmp_path: Path, first: int, chosen: set[int]) -> None:
    """Patience of one epoch would end the training before, if it began to count at the start."""
    planned = _planned(tmp_path, epochs=4, patience=1, choose_from=first, lr=1e-6)
    record = execute(planned)
    assert record["fit"]["best_epoch"] in chosen
    assert record["fit"]["epochs"] >= min(first, 4)


def test_the_loss_of_hagmil_is_its_authors(tmp_path: Path) -> None:
    options = "levels = 2, widths = [16, 16], attention_dims = [8, 8], dropout = 0.0, nystrom_dropout = 0.0"
    (planned,) = plan(tmp_path, models=f'[{{ name = "hagmil", recipe = "authors", {options} }}]')[:1]
    loop = _start(planned)
    slide = loop.slides[0]
    out = loop.model(canonical(loop.store.load(slide)))
    label = planned.job.task.classes.index(str(loop.target_of[slide]))
    truth = torch.tensor([label])
    (coarse,) = out.side
    extra = loop.model.extra_loss(out, label)
    assert extra is not None
    expected = (
        0.5 * torch.nn.CrossEntropyLoss()(out.logits[None], truth)
        + 0.5 * torch.nn.CrossEntropyLoss(label_smoothing=0.1)(coarse.logits[None], truth)
        + extra
    )
    torch.testing.assert_close(loop._loss(slide, out), expected)


def test_csmil_and_abmil_train_as_their_authors_did_on_one_output(tmp_path: Path) -> None:
    models = (
        '[{ name = "csmil", recipe = "authors", hidden = 8, attention_dim = 4 },'
        ' { name = "abmil", recipe = "authors", hidden = 8, attention_dim = 4 }]'
    )
    for planned in plan(tmp_path, models=models)[:2]:
        assert planned.job.task.class_loss == "bernoulli"
        record = execute(with_recipe(planned, epochs=2))
        weights = map_file(Path(planned.folder) / "model.safetensors")[0]
        last = weights["head.3.weight" if planned.job.model == "csmil" else "classifier.weight"]
        assert last.shape[0] == 1
        assert 0 <= record["fit"]["val"]["auc"] <= 1


def test_survival_as_the_authors_did_it(tmp_path: Path) -> None:
    def job(options: str) -> Any:
        return plan(tmp_path, "survival", f'[{{ name = "mambamil", recipe = "authors"{options} }}]')[0].job

    assert (job("").recipe.accumulate, job("").recipe.patience_from, job("").recipe.select_by) == (32, 40, "metric")
    assert job("").options["dropout"] == 0.25
    assert job(", dropout = 0.1").options["dropout"] == 0.1  # what the experiment says comes first
    assert model_class("mambamil").as_authors("classification") == (model_class("mambamil").authors_recipe, {})
    assert model_class("zoommil").as_authors("survival") == (model_class("zoommil").authors_recipe, {})


# ---- mixed precision -----------------------------------------------------------------------------------------------


def _has_float16(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    monkeypatch.setattr(precision, "cpu_has_float16", lambda: has)


def test_a_machine_without_float16_trains_in_float32_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _has_float16(monkeypatch, False)
    usual = _planned(tmp_path / "plain")
    plain = _trained(usual)
    planned = _planned(tmp_path / "mixed", precision="mixed-float16")
    with pytest.warns(UserWarning, match="no float16 arithmetic"):
        asked = _trained(planned)
    assert all(torch.equal(tensor, plain[name]) for name, tensor in asked.items())
    noted = [json.loads((Path(run.folder) / "run.json").read_text())["fit"]["notes"] for run in (usual, planned)]
    assert noted == [[], [precision.WITHOUT_FLOAT16]]


def test_mixed_precision_equals_torchs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _has_float16(monkeypatch, True)
    planned = _planned(tmp_path, precision="mixed-float16", sampling="fixed", epochs=1, weight_decay=0.0)
    loop = _start(planned)
    model, job = loop.model.train(), planned.job
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    label = {s: job.task.classes.index(str(c.target.label)) for c in job.train for s in c.slides}
    for slide in sorted(label):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(canonical(loop.store.load(slide))).logits
        assert logits.dtype == torch.float16
        loss = functional.cross_entropy(logits.float()[None], torch.tensor([label[slide]]))
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained = _trained(planned)
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_transmil_runs_in_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    _has_float16(monkeypatch, True)
    torch.manual_seed(0)
    model = build("transmil", 8, 2, hidden=32, dropout=0.0)
    bag = random_bag(dim=8)
    mixed = precision.Precision(model_class("transmil").authors_recipe, torch.device("cpu")).forward(model, bag)
    assert mixed.logits.dtype == torch.float32
    torch.testing.assert_close(mixed.logits, model(bag).logits, rtol=0.05, atol=0.05)
    assert not torch.equal(mixed.logits, model(bag).logits)
    torch.autograd.backward(functional.cross_entropy(mixed.logits[None], torch.tensor([1])))
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def _steps(model: BagModel, optimizer: Optimizer, count: int) -> None:
    bag = random_bag(dim=8)
    for _ in range(count):
        torch.autograd.backward(optimizer.scaled(model(bag).logits.pow(2).sum()))
        optimizer.step(1e-2)


def test_an_overflowing_step_is_left_out_and_lowers_the_scale() -> None:
    torch.manual_seed(0)
    model = build("mean", 8, 2, hidden=4, dropout=0.0)
    optimizer = Optimizer(model, replace(COMMON, optimizer="lookahead-radam"), mixed=True)
    _steps(model, optimizer, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scale = optimizer.scaler.get_scale()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    optimizer.step(1e-2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert optimizer.scaler.get_scale() == scale / 2
    assert optimizer.lookahead is not None
    assert optimizer.lookahead.steps == 1


def test_the_loss_scale_survives_a_restart() -> None:
    recipe = replace(COMMON, optimizer="adam")
    torch.manual_seed(0)
    straight = build("mean", 8, 2, hidden=4, dropout=0.0)
    first = Optimizer(straight, recipe, mixed=True)
    _steps(straight, first, 2)
    resumed = build("mean", 8, 2, hidden=4, dropout=0.0)
    resumed.load_state_dict(straight.state_dict())
    second = Optimizer(resumed, recipe, mixed=True)
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    assert second.scaler.state_dict() == first.scaler.state_dict()
    for model, optimizer in ((straight, first), (resumed, second)):
        _steps(model, optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))
    with pytest.raises(RunError, match="began in float16"):
        Optimizer(resumed, recipe).load_state(first.state())


# ---- the page ------------------------------------------------------------------------------------------------------


def _documented() -> dict[str, list[str]]:
    """The rows of the page's recipe table by model."""
    text = DOCS.read_text().split("## Recipes")[1].split("\n\n| name |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {name: row for row in rows for name in re.findall(r"`([\w-]+)`", row[0])}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("probe", "tiles")])  # these need none
def test_the_page_says_what_the_recipe_is(name: str) -> None:
    recipe: Recipe = model_class(name).authors_recipe
    _, optimizer, lr, decay, schedule, epochs, stops, chosen, clip, also = _documented()[name]
    assert optimizer == recipe.optimizer
    assert (float(lr), float(decay), int(epochs)) == (recipe.lr, recipe.weight_decay, recipe.epochs)
    assert ("constant" in schedule) == (recipe.schedule == "constant")
    assert stops.startswith("never") == (recipe.patience >= recipe.epochs)
    assert chosen.split()[0].strip(",") == recipe.select_by
    assert ("from epoch" in chosen) == (recipe.choose_from > 1)
    assert clip.startswith("none") == (recipe.clip is None)
    said = {
        "slides per step": recipe.accumulate > 1,
        "classes drawn equally often": recipe.sampling == "weighted",
        "always in the same order": recipe.sampling == "fixed",
        "mixed float16": recipe.precision == "mixed-float16",
        "smoothed by 0.1": recipe.side_label_smoothing == 0.1,
        "Bernoulli": recipe.class_loss == "bernoulli",
    }
    assert {words: words in also for words in said} == said
