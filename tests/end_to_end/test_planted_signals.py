"""The paper's claim, tested where it can be tested: on made-up patients whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from marble.bags.augment import canonical, generator, shuffled
from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.models import COMMON
from marble.models.inference import infer
from marble.synthetic.bags import BagRecipe
from marble.synthetic.cohort import Kind, write_cohort
from marble.synthetic.three_scales import make_three_scale_bag, without_level
from marble.tasks.metric import Undefined
from marble.training.evaluate import columns, predict_cases
from marble.training.fit import fit
from marble.training.job import CaseSpec, FitJob, TargetSpec, TaskSpec

TRAIN, VAL, TEST = 64, 16, 60
CONTROLS: dict[str, dict[str, Any]] = {
    "coarse only": {"levels": 1, "level": 0},
    "fine only": {"levels": 1},
    "shuffled parents": {"fusion": "shuffled"},
}


def _cases(table: Path) -> list[CaseSpec]:
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    survival = len(rows[0]) == 4
    return [
        CaseSpec(
            case_id=row[0],
            slides=(row[1],),
            target=TargetSpec(time=float(row[2]), event=row[3] == "1") if survival else TargetSpec(label=row[2]),
        )
        for row in rows
    ]


def _score(folder: Path, kind: Kind, seed: int, options: dict[str, Any], task: TaskSpec, epochs: int) -> float:
    """Train on some patients, choose on others, score on the rest."""
    table, store = write_cohort(folder / kind / str(seed), kind, TRAIN + VAL + TEST, seed=seed, two_slides=0.0)
    cases = _cases(table)
    order = np.random.default_rng(seed).permutation(len(cases))
    train, val, test = np.split(order, [TRAIN, TRAIN + VAL])
    job = FitJob(
        model="marble",
        options={"d_state": 16, **options},
        dim=32,
        task=task,
        recipe=replace(COMMON, epochs=epochs, warmup=1, lr=2e-3, patience=epochs),
        store=str(store.root),
        bags_sha256="0" * 64,
        train=tuple(cases[i] for i in train),
        val=tuple(cases[i] for i in val),
        split="made-up",
        seed=seed,
        val_orders=1,
    )
    name = "-".join(f"{key}={value}" for key, value in options.items()) or "both"
    model = fit(job, folder / "fit" / kind / str(seed) / name)
    built = task.build()
    rows = predict_cases(model, store, [cases[i] for i in test], built, orders=4)
    metric = built.metrics([row.case.target.value() for row in rows], columns(rows, built))[built.select_by]
    assert not isinstance(metric, Undefined)
    return metric


CLASSES = TaskSpec(name="classification", classes=("negative", "positive"))


def test_both_levels_find_what_one_cannot(tmp_path: Path) -> None:
    assert _score(tmp_path, "cross-scale", 0, {}, CLASSES, epochs=8) >= 0.9
    assert _score(tmp_path, "cross-scale", 0, CONTROLS["fine only"], CLASSES, epochs=4) < 0.75


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cross_scale_signal_and_its_controls(tmp_path: Path, seed: int) -> None:
    assert _score(tmp_path, "cross-scale", seed, {}, CLASSES, epochs=10) >= 0.9
    for name, options in CONTROLS.items():
        assert _score(tmp_path, "cross-scale", seed, options, CLASSES, epochs=10) < 0.75, name


def test_survival_is_learned_with_one_slide_per_step(tmp_path: Path) -> None:
    assert _score(tmp_path, "survival", 0, {}, TaskSpec(name="survival"), epochs=8) >= 0.75


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("risk_set", ["bank", "group"])
def test_survival_over_seeds(tmp_path: Path, seed: int, risk_set: Any) -> None:
    task = TaskSpec(name="survival", risk_set=risk_set, group=16)
    assert _score(tmp_path, "survival", seed, {}, task, epochs=15) >= 0.75


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "survival"])
def test_shuffled_labels_teach_nothing(
    tmp_path: Path, kind: Any, record_property: Callable[[str, object], None]
) -> None:
    """Without a signal the mean score over seeds is chance; anything else would be a leak."""
    scores: list[float] = []
    record_property("cases", seeds := 20)
    for seed in range(seeds):
        table, store = write_cohort(tmp_path / kind / str(seed), kind, 160, seed=seed, two_slides=0.0)
        cases = _cases(table)
        rng = np.random.default_rng(seed)
        targets = [cases[i].target for i in rng.permutation(len(cases))]
        cases = [case.model_copy(update={"target": target}) for case, target in zip(cases, targets, strict=True)]
        task = CLASSES if kind == "noise" else TaskSpec(name="survival")
        job = FitJob(
            model="abmil", options={"hidden": 32}, dim=32, task=task, store=str(store.root), bags_sha256="0" * 64,
            recipe=replace(COMMON, epochs=4, warmup=1, lr=1e-3), train=tuple(cases[:44]), val=tuple(cases[44:60]),
            split="made-up", seed=seed,
        )  # fmt: skip
        built = task.build()
        rows = predict_cases(fit(job, tmp_path / "fit" / kind / str(seed)), store, cases[60:], built, orders=1)
        metric = built.metrics([row.case.target.value() for row in rows], columns(rows, built))[built.select_by]
        assert not isinstance(metric, Undefined)
        scores.append(metric)
    assert np.mean(scores) == pytest.approx(0.5, abs=0.05)


def test_a_prediction_is_bitwise_the_same_for_any_stored_order(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    from marble.models import build
    from marble.synthetic.bags import BagRecipe, make_bag

    bag = make_bag("slide", 0.5, BagRecipe())
    model = build("marble", 32, 2, d_state=16)
    first = infer(model, bag, 4)

    def same(other: Bag) -> bool:
        again = infer(model, other, 4)
        pairs: list[tuple[Tensor, Tensor]] = [
            (first.logits, again.logits),
            (first.logits_by_order, again.logits_by_order),
            (first.attention, again.attention),
            (first.embedding, again.embedding),
        ]
        return all(bool((a == b).all()) for a, b in pairs) and first.order_sd == again.order_sd

    store = BagStore(tmp_path)
    record_property("cases", 2 * (orders := 20))  # each as it is, and as it is stored
    for number in range(orders):
        other = shuffled(bag, generator("order", number))
        assert same(other)
        stored = Bag(f"slide-{number}", other.levels, other.provenance)
        store.save(stored)
        loaded = store.load(f"slide-{number}")
        assert same(Bag("slide", loaded.levels, checked=True))
    assert same(canonical(bag))
    assert first.order_sd > 0  # a causal scan does depend on the order; the spread is told, not hidden
    assert abs(float(first.attention.sum()) - 1) < 1e-5


# ---- three levels --------------------------------------------------------------------------------------------------


def _three_scale_score(folder: Path, seed: int, left_out: int | None, options: dict[str, Any]) -> float:
    """Test AUC on the cohort whose signal needs all three levels, with all of them or with one left out."""
    train, val, test = 120, 30, 80
    store = BagStore(folder / f"bags-{seed}-{left_out}")
    cases = []
    for index in range(train + val + test):
        slide = f"P{seed}-{index:04d}"
        bag = make_three_scale_bag(slide, index % 2, BagRecipe(children=4), seed)
        store.save(bag if left_out is None else without_level(bag, left_out))
        label = TargetSpec(label=("negative", "positive")[index % 2])
        cases.append(CaseSpec(case_id=slide, slides=(slide,), target=label))
    job = FitJob(
        model="marble",
        options={"d_state": 16, "levels": 3 if left_out is None else 2, **options},
        dim=32,
        task=CLASSES,
        recipe=replace(COMMON, epochs=12, warmup=1, lr=2e-3, patience=12),
        store=str(store.root),
        bags_sha256="0" * 64,
        train=tuple(cases[:train]),
        val=tuple(cases[train : train + val]),
        split="made-up",
        seed=seed,
        val_orders=1,
    )
    built = CLASSES.build()
    model = fit(job, folder / f"fit-{seed}-{left_out}-{len(options)}")
    rows = predict_cases(model, store, cases[train + val :], built, orders=2)
    metric = built.metrics([row.case.target.value() for row in rows], columns(rows, built))[built.select_by]
    assert not isinstance(metric, Undefined)
    return metric


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("mixer", ["mamba2", "set"])
def test_three_levels_find_what_no_two_of_them_can(tmp_path: Path, mixer: str, seed: int) -> None:
    """With -s it prints the row that docs/concepts/the-model.md shows."""
    scores = [_three_scale_score(tmp_path, seed, left_out, {"mixer": mixer}) for left_out in (None, 0, 1, 2)]
    print(f"\n| {mixer} | {seed} | {' | '.join(f'{score:.3f}' for score in scores)} |")
    all_three, *pairs = scores
    assert all_three >= 0.9
    assert max(pairs) < 0.8, f"without one level, coarsest first: {pairs}"
