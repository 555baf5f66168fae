"""`marble bench zoo`: products are counted right, too large a size is left out, and a quick run says all it should."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d, conv2d, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from marble import files
from marble.benchmarks import zoo, zoo_scans
from marble.benchmarks.measure import peak_memory
from marble.benchmarks.zoo_gemms import Product, RecordProducts, bare


def test_quick_run_writes_every_documented_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One process that measures memory is enough for a test; each has to import torch.
    measured_once = functools.cache(lambda: peak_memory("marble.benchmarks.zoo:prepare", "csmil", 256, "forward"))
    monkeypatch.setattr(zoo, "peak_memory", lambda *_, threads: measured_once())
    result = zoo.run(json_path=tmp_path / "zoo.json", quick=True)
    assert files.read_json(tmp_path / "zoo.json") == result
    assert result["not_measured_yet"] == []
    assert (tmp_path / "zoo.png").read_bytes().startswith(b"\x89PNG")
    assert {"machine", "dim", "repeats", "scan_target", "left_out"} <= set(result)
    measured = {(row["model"], row["tokens"], row["which"]) for row in result["models"]}
    assert measured == {(m, t, w) for m in zoo.QUICK_MODELS for t in zoo.QUICK_SIZES for w in zoo_scans.PASSES}
    for row in result["models"]:
        assert row["seconds"] > 0
        assert row["ratio"] == pytest.approx(row["seconds"] / row["products_seconds"])
        assert row["products_gflop"] > 0
        assert row["bytes"] >= 0
    assert {(row["scan"], row["which"]) for row in result["scans"]} == {
        (scan, which) for scan in ("selective scan", "selective scan 2-D", "s4d") for which in zoo_scans.PASSES
    }
    assert all(row["ratio"] > 0 for row in result["scans"])


def test_products_of_a_network_are_those_torch_counts() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(12, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3, bias=False))
    kernel = torch.randn(6, 4, 3, requires_grad=True)

    def learn() -> None:
        h = net(torch.randn(20, 12))  # (20, 3)
        pairs = torch.einsum("bij,bkj->bik", torch.randn(5, 4, 3), h.view(5, 4, 3))
        torch.autograd.backward(conv1d(pairs, kernel, padding=1).sum())

    with FlopCounterMode(display=False) as oracle:
        learn()
    with RecordProducts() as recorded:
        learn()
    assert sum(p.flops * count for p, count in recorded.products.items()) == oracle.get_total_flops() > 0


def test_products_written_in_place_and_vectors_count() -> None:
    a, b, out = torch.randn(2, 3), torch.randn(3, 5), torch.zeros(2, 5)
    with RecordProducts() as recorded:
        torch.mm(a, b, out=out)
        out.addmm_(a, b)
        a @ b[:, 0]
    assert recorded.products == {Product(1, 2, 3, 5): 2, Product(1, 2, 3, 1): 1}


def test_fused_attention_is_two_products_forwards_and_five_backwards() -> None:
    q, k, v = (torch.randn(1, 2, n, 8, requires_grad=True) for n in (9, 11, 11))
    with RecordProducts() as forwards:
        out = scaled_dot_product_attention(q, k, v)
    with RecordProducts() as backwards:
        torch.autograd.backward(out.sum())
    one = Product(2, 9, 8, 11).flops  # all seven are as large
    assert sum(p.flops * count for p, count in forwards.products.items()) == 2 * one
    assert sum(p.flops * count for p, count in backwards.products.items()) == 5 * one


def test_a_grouped_convolution_counts_its_groups_and_goes_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marble.benchmarks.zoo_gemms.UNFOLDED_NUMBERS", 1000)
    x = torch.randn(1, 8, 20, 30, requires_grad=True)
    weight = torch.randn(8, 1, 5, 5, requires_grad=True)
    with RecordProducts() as recorded:
        y = conv2d(x, weight, padding=2, groups=8)
    assert recorded.products == {Product(8, 1, 25, 5): 120}  # 600 places, five at once
    with RecordProducts() as backwards:
        torch.autograd.backward(y.sum())
    assert sum(p.flops * count for p, count in backwards.products.items()) == 2 * (2 * 8 * 25 * 600)


def test_bare_runs_each_product_as_often_as_counted() -> None:
    products = {Product(1, 4, 5, 6): 3, Product(7, 2, 3, 1): 2}
    with RecordProducts() as recorded:
        bare(products)()
    assert recorded.products == products


def test_bag_has_a_sixteenth_of_the_tiles_per_level() -> None:
    bag = zoo.synthetic_bag(1024, 3)
    assert [len(level) for level in bag.levels] == [4, 64, 1024]


@pytest.mark.parametrize(
    ("seconds", "taken", "said"), [(1.0, 1 << 20, None), (40.0, 1 << 20, "160 s"), (1.0, 2 << 30, "8.0 GiB")]
)
def test_a_size_that_would_take_too_much_is_left_out(
    seconds: float, taken: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "available_bytes", lambda: 12 << 30)
    known = zoo.ModelCost("abmil", 1024, "forward", seconds, seconds, 1.0, 1, 1.0, taken, 1.0)
    reason = zoo.too_much(known, 4096)
    assert reason is None if said is None else said in str(reason)


def test_scans_equal_the_loops_they_are_timed_against() -> None:
    for name, (inputs, fast, loop) in zoo_scans.scans(16).items():
        torch.testing.assert_close(fast(inputs), loop(inputs), rtol=1e-4, atol=1e-4, msg=name)


def test_a_run_that_is_stopped_keeps_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(name: str, which: str, *_: object) -> list[zoo.ModelCost]:
        if name == zoo.QUICK_MODELS[1]:
            raise KeyboardInterrupt
        return [zoo.ModelCost(name, 256, which, 1.0, 1.0, 1.0, 1, 1.0, 1, 1.0)]

    monkeypatch.setattr(zoo, "measure_scans", lambda *_: [])
    monkeypatch.setattr(zoo, "measure_model", measured)
    with pytest.raises(KeyboardInterrupt):
        zoo.run(json_path=tmp_path / "zoo.json", quick=True)
    kept = files.read_json(tmp_path / "zoo.json")
    assert [row["model"] for row in kept["models"]] == [zoo.QUICK_MODELS[0]] * 2
    assert kept["not_measured_yet"] == [zoo.QUICK_MODELS[1]]

    asked: list[tuple[str, str, list[int]]] = []

    def second_run(name: str, which: str, *rest: Any) -> list[zoo.ModelCost]:
        known = rest[-1]
        asked.append((name, which, sorted(known)))
        return list(known.values()) or [zoo.ModelCost(name, 256, which, 1.0, 1.0, 1.0, 1, 1.0, 1, 1.0)]

    monkeypatch.setattr(zoo, "measure_model", second_run)
    result = zoo.run(json_path=tmp_path / "zoo.json", quick=True)
    known = {zoo.QUICK_MODELS[0]: [256]}
    assert asked == [(m, w, known.get(m, [])) for m in zoo.QUICK_MODELS for w in zoo_scans.PASSES]
    assert len(result["models"]) == 4


def test_figures_of_another_machine_are_not_gone_on_from(tmp_path: Path) -> None:
    files.publish_json(tmp_path / "zoo.json", {"benchmark": "zoo", "machine": "another", "models": [1]})
    assert zoo._measured_before(tmp_path / "zoo.json", {"benchmark": "zoo", "machine": "this one"}) == {}
    assert zoo._measured_before(tmp_path / "zoo.json", {"benchmark": "zoo", "machine": "another"})["models"] == [1]


def test_a_known_size_is_not_measured_again() -> None:
    row = zoo.ModelCost("mean", 64, "forward", 1.0, 1.0, 1.0, 1, 1.0, 1, 1.0)
    assert zoo.measure_model("mean", "forward", (64,), 1, [], {64: row}) == [row]


def test_a_long_pass_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "peak_memory", lambda *_, threads: 1)
    for limit, repeats in ((0.0, 1), (1e9, 2)):
        monkeypatch.setattr(zoo, "LONG_SECONDS", limit)
        assert zoo.measure_model("mean", "forward", (64,), 2, [], {})[0].repeats == repeats
