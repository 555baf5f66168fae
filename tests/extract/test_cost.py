"""The cost of a cohort, against sums by hand."""

from __future__ import annotations

import pytest

from marble.extract.cost import Fleet, Prices, SlideCost, Training, bill

SLIDE = SlideCost(tiles=100, reads=5, slide_bytes=2**30, bag_bytes=2**20, open_s=2, read_s=30, encode_s=90, flops=1e12)


def test_cores_open_alone_and_share_the_rest() -> None:
    found = bill(SLIDE, 3, Fleet(workers=1, cores=4))
    assert found.extract_hours * 3600 == pytest.approx(3 * (2 + (30 + 90) / 4))
    assert (found.tiles, found.reads, found.slide_bytes, found.bag_bytes) == (300, 15, 3 * 2**30, 3 * 2**20)
    assert found.flops == 3e12
    assert found.bottleneck == "cores"


def test_a_slide_is_never_shared_between_workers() -> None:
    one, four, five = (bill(SLIDE, slides, Fleet(workers=4)).extract_hours for slides in (1, 4, 5))
    assert one == four
    assert five == 2 * one


def test_a_gpu_encodes_while_cores_read() -> None:
    slow = bill(SLIDE, 10, Fleet(workers=1, cores=1, gpus=1))
    assert slow.hours["cores"] * 3600 == pytest.approx(10 * (2 + 30))
    assert slow.hours["GPUs"] * 3600 == pytest.approx(10 * 90)
    assert slow.bottleneck == "GPUs"
    assert bill(SLIDE, 10, Fleet(workers=1, cores=1, gpus=4)).bottleneck == "cores"
    shared = bill(SLIDE, 10, Fleet(workers=1, cores=1, gpus=0.5))
    assert shared.hours["GPUs"] == pytest.approx(2 * slow.hours["GPUs"])


def test_a_link_is_shared_by_all_workers() -> None:
    found = bill(SLIDE, 10, Fleet(workers=10, cores=1, link=2**20))
    assert found.hours["link"] * 3600 == pytest.approx(10 * 1024)
    assert found.bottleneck == "link"


def test_steps_of_a_cross_validation() -> None:
    assert Training(folds=5, epochs=20).steps(100) == 5 * 80 * 20
    assert Training(folds=1, epochs=3).steps(100) == 300
    found = bill(SLIDE, 100, Fleet(workers=2), Training(folds=5, epochs=20, step_s=0.5))
    assert found.training_hours * 3600 == pytest.approx(8000 * 0.5 / 2)


def test_money_is_what_the_machines_and_the_bags_cost() -> None:
    prices = Prices(core_hour=0.1, gpu_hour=3.0, gib_month=0.02)
    found = bill(SLIDE, 8, Fleet(workers=4, cores=2, gpus=0.5), Training(2, 3, step_s=1.5), prices)
    hours = 2 * max(2 + 30 / 2, 90 / 0.5) / 3600 * 4 + 8 / 2 * 2 * 3 * 1.5 / 3600
    assert found.money == pytest.approx(hours * (2 * 0.1 + 0.5 * 3.0) + 8 / 1024 * 0.02)
