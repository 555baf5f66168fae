"""As few token orders as validation allows."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from marble.bags.store import BagStore
from marble.prediction import Predictor
from marble.training.order_count import choose_orders
from marble.training.run import execute
from tests.training.jobs import plan


@pytest.mark.parametrize(
    ("sd", "tolerance", "orders", "reached"),
    [(0.4, 0.2, 4, True), (0.4, 0.21, 4, True), (0.4, 0.4, 1, True), (0.4, 0.1, 8, False), (0.0, 0.1, 1, True)],
)
def test_the_error_of_the_mean_decides(sd: float, tolerance: float, orders: int, reached: bool) -> None:
    chosen = choose_orders([sd] * 5, 8, tolerance)
    assert (chosen.orders, chosen.reached) == (orders, reached)
    assert chosen.record()["order_error"] == pytest.approx(sd / orders**0.5)


def test_nine_cases_in_ten_decide_and_no_tolerance_takes_all() -> None:
    sds = [0.1] * 18 + [5.0, 5.0]
    assert choose_orders(sds, 8, 0.1).orders == 1
    assert choose_orders([*sds, 5.0], 8, 0.1).orders == 8
    assert choose_orders(sds, 8, None).orders == 8


def test_a_mean_over_so_many_orders_is_that_certain() -> None:
    """By simulation: with the chosen K, means over K orders scatter by no more than the tolerance."""
    rng = np.random.default_rng(0)
    sd, tolerance = 0.37, 0.15
    orders = choose_orders([sd], 100, tolerance).orders
    scatter = rng.normal(0, sd, (20_000, orders)).mean(axis=1).std()
    fewer = rng.normal(0, sd, (20_000, orders - 1)).mean(axis=1).std()
    assert scatter < 1.02 * tolerance
    assert fewer > tolerance


@pytest.mark.parametrize(("tolerance", "orders", "reached"), [("100.0", 1, True), ("1e-9", 3, False)])
def test_the_run_keeps_its_number_and_predicts_with_it(
    tmp_path: Path, tolerance: str, orders: int, reached: bool
) -> None:
    (planned,) = plan(tmp_path, "burden", '[{ name = "marble", d_state = 8 }]', epochs=1)[:1]
    changes = {"orders": 3, "order_tolerance": float(tolerance)}
    planned = planned.model_copy(update={"job": planned.job.model_copy(update=changes)})
    record = execute(planned)
    assert record["orders"] == orders
    assert record["order_choice"]["reached"] is reached
    assert record["order_choice"]["most"] == 3
    predictor = Predictor(planned.folder)
    assert predictor.orders == orders
    rows = list(csv.DictReader((Path(planned.folder) / "predictions.csv").open()))
    for row in (next(r for r in rows if r["part"] == part) for part in ("val", "test")):
        (slide, *more) = row["slide_ids"].split(";")
        if not more:
            answer = predictor.answer(BagStore(planned.job.store).load(slide)).row()
            assert str(answer["p_positive"]) == row["p_positive"]
            assert "order_sd" in answer
