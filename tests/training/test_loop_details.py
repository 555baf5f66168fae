"""What history and record say of a training, and small bags in groups."""

from __future__ import annotations

import csv
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.models import BagModel, Output, build
from marble.models.inference import infer
from marble.models.zoo.clam import CLAMSB
from marble.synthetic.bags import BagRecipe, make_burden_bag
from marble.training import evaluate, loop
from marble.training.checkpoint import newest, prune, save_checkpoint
from marble.training.fit import fit
from marble.training.loop import TrainingLoop
from marble.training.optim import Optimizer
from marble.training.precision import Precision
from marble.training.run import execute
from tests.training.jobs import plan, with_recipe


def test_the_history_holds_the_learning_rate_that_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(tmp_path, epochs=4)[0]
    planned = with_recipe(planned, schedule="plateau", warmup=0, patience=9)
    used: list[float] = []
    original = Optimizer.step

    def watched(self: Any, rate: float) -> None:
        used.append(rate)
        original(self, rate)

    monkeypatch.setattr(Optimizer, "step", watched)
    monkeypatch.setattr("marble.training.loop.plateau_factor", lambda recipe, losses: 0.5 ** len(losses))
    fit(planned.job, planned.folder)
    rows = list(csv.DictReader((Path(planned.folder) / "history.csv").open()))
    steps = len(used) // len(rows)
    assert [float(row["lr"]) for row in rows] == used[steps - 1 :: steps]
    assert len(set(used)) == len(rows)  # it fell in every epoch


def test_seconds_go_on_where_a_run_was_stopped(tmp_path: Path) -> None:
    planned = plan(tmp_path)[0]
    told: list[float] = []

    def stop(event: dict[str, Any]) -> None:
        told.append(event["seconds"])
        if event["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(planned.job, planned.folder, stop)
    fit(planned.job, planned.folder, lambda event: told.append(event["seconds"]))
    assert told == sorted(told)
    assert json.loads((Path(planned.folder) / "fit.json").read_text())["seconds"] == told[-1] > told[1]


def test_the_bank_is_primed_whatever_order_bags_are_stored_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that reads tokens in order must not be told the stored one."""
    planned = plan(tmp_path, "survival", '[{ name = "marble", d_state = 8 }]', patients=16)[0]

    def primed() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        task = planned.job.bound_task.build()
        model = build(planned.job.model, planned.job.dim, task.outputs, **planned.job.options)
        loop = TrainingLoop(planned.job, tmp_path / "unused", task, model, None)
        loop._prime()
        return dict(loop.criterion.state())

    before = primed()
    load = BagStore.load

    def reversed_tokens(self: BagStore, slide_id: str) -> Any:
        bag = load(self, slide_id)
        fine = bag.finest
        assert fine.parent is not None
        order = torch.arange(len(fine)).flip(0)
        return bag.with_levels([*bag.levels[:-1], fine.take(order, fine.parent[order])])

    monkeypatch.setattr(BagStore, "load", reversed_tokens)
    after = primed()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_small_bag_in_a_group_stands_in_with_its_main_prediction(tmp_path: Path) -> None:
    """DTFD splits a bag into pseudo-bags; one of fewer tiles than groups has none of its own."""
    planned = plan(tmp_path, "survival", '[{ name = "dtfd" }]', train=', risk_set = "group"', epochs=1)[0]
    store = BagStore(planned.job.store)
    slide = planned.job.train[0].slides[0]
    store.save(make_burden_bag(slide, 0.5, BagRecipe(coarse=(2, 2), children=1)))
    assert len(store.load(slide).finest) < 4
    record = execute(planned)
    assert record["fit"]["epochs"] == 1


@pytest.mark.parametrize("model", ["marble", "abmil", "dtfd"])
def test_large_slides_of_a_group_take_the_memory_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Each is computed again for its gradient, which changes no bit of what is trained; small ones are held."""
    passes: list[str] = []
    spoken = Precision.forward

    def counted(self: Precision, model: BagModel, bag: Bag) -> Output:
        passes.append(bag.slide_id)
        return spoken(self, model, bag)

    monkeypatch.setattr(Precision, "forward", counted)

    def trained(folder: Path) -> tuple[str, int]:
        train = ', risk_set = "group", group = 4'
        planned = plan(folder, "survival", f'[{{ name = "{model}" }}]', train=train, epochs=1)[0]
        passes.clear()
        return execute(planned)["sha256"]["model"], len(passes)

    once, seldom = trained(tmp_path / "held")
    monkeypatch.setattr(loop, "HELD_TOKENS", 0)
    twice, often = trained(tmp_path / "again")
    assert twice == once
    assert often > seldom


def test_nothing_as_large_as_a_bag_is_kept_of_a_slide_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole cohorts are primed and predicted: of a slide only its logits stay when the next one is read."""
    job = plan(tmp_path, "survival", '[{ name = "clam-sb" }]', patients=16)[0].job
    task = job.bound_task.build()
    model = build(job.model, job.dim, task.outputs, **job.options)
    kept: list[int] = []
    large: list[weakref.ref[Any]] = []

    def note(thing: Any) -> None:
        kept.append(sum(one() is not None for one in large))
        large.append(weakref.ref(thing))

    def watched_forward(self: CLAMSB, bag: Bag, original: Any = CLAMSB.forward) -> Output:
        out: Output = original(self, bag)
        note(out.hidden["tokens"])
        return out

    def watched_infer(*args: Any) -> Any:
        said = infer(*args)
        note(said)
        return said

    with monkeypatch.context() as patched:
        patched.setattr(CLAMSB, "forward", watched_forward)
        TrainingLoop(job, tmp_path / "unused", task, model, None)._prime()
    primed = len(kept)
    monkeypatch.setattr(evaluate, "infer", watched_infer)
    evaluate.predict_cases(model, BagStore(job.store), job.train, task, 1)
    assert len(kept) == 2 * primed > 10
    assert max(kept[:primed]) <= 1  # the last one, until its name is taken
    large.clear()
    assert max(kept[primed:]) <= 2


def test_checkpoints_beyond_four_digits_are_found_and_pruned(tmp_path: Path) -> None:
    for epoch in (9998, 9999, 10000, 10001):
        save_checkpoint(tmp_path, epoch, {}, {})
    found = newest(tmp_path)
    assert found is not None
    assert found.epoch == 10001
    prune(tmp_path, best=9998)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-10000", "epoch-10001", "epoch-9998"]


def test_a_slide_that_is_drawn_again_in_an_epoch_is_seen_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = with_recipe(plan(tmp_path, models='[{ name = "marble", d_state = 8 }]', epochs=1)[0], sampling="weighted")
    seen: dict[str, list[bytes]] = {}
    spoken = Precision.forward

    def noted(self: Precision, model: BagModel, bag: Bag) -> Output:
        seen.setdefault(bag.slide_id, []).append(bag.finest.cells.numpy().tobytes())
        return spoken(self, model, bag)

    monkeypatch.setattr(Precision, "forward", noted)
    fit(planned.job, planned.folder)
    assert max(map(len, seen.values())) > 1
    assert all(len(set(orders)) == len(orders) for orders in seen.values())
