"""Which device is taken, what an absent one says, and that bags go there and answers come back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marble import devices, files
from marble.bags.augment import keep_branches, random_orders, reorder, shuffled
from marble.errors import InputError, RunError, UnavailableError
from marble.training.fit import fit
from marble.training.run import execute
from tests.cli.commands import marble as run
from tests.models.zoo.test_marble import nested_bag
from tests.training.jobs import plan, with_recipe

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@no_gpu
def test_auto_takes_what_is_here() -> None:
    assert devices.choose().type in ("cpu", "mps")
    assert devices.describe(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "cuda:x", "", "cpu:1", "CUDA"])
def test_a_name_that_is_no_device_is_refused_with_the_names_that_are(asked: str) -> None:
    with pytest.raises(InputError, match="auto, cpu, cuda"):
        devices.choose(asked)


@no_gpu
def test_an_absent_device_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match=r"no CUDA device.*Use auto"):
        devices.choose("cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UnavailableError, match=r"no Apple GPU.*Use auto"):
        devices.choose("mps")


def test_the_best_device_is_taken_and_numbers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert devices.choose("auto") == torch.device("cuda:0")
    assert devices.choose_several("cuda:0,cuda:1") == [torch.device("cuda:0"), torch.device("cuda:1")]
    with pytest.raises(UnavailableError, match="there are 2 CUDA devices"):
        devices.choose("cuda:2")
    with pytest.raises(InputError, match="twice"):
        devices.choose_several("cuda,cuda:0")
    with pytest.raises(InputError, match="the CPU cannot share"):
        devices.choose_several("cpu,cuda:0")


@no_gpu
@pytest.mark.parametrize("verb", ["run", "predict", "heatmap", "view", "extract", "bench"])
def test_every_command_says_an_absent_device_in_one_line(verb: str, tmp_path: Path) -> None:
    (planned,) = plan(tmp_path, patients=12, epochs=1)[:1]
    if verb in ("predict", "heatmap"):
        execute(planned)
    slide = tmp_path / "slide.png"
    files.publish(slide, b"")
    arguments: dict[str, list[object]] = {
        "run": [tmp_path / "tiny.toml", "--out", tmp_path / "out"],
        "predict": [planned.folder, planned.job.store],
        "heatmap": [planned.folder, planned.job.train[0].slides[0], "--store", planned.job.store],
        "view": [tmp_path],
        "extract": [slide, "--store", tmp_path / "bags", "--magnifications", "2.5,10"],
        "bench": ["model", "--quick"],
    }
    ended = run(verb, *arguments[verb], "--device", "cuda")
    assert ended.code != 0
    assert "Traceback" not in ended.out + ended.err
    lines = [line for line in ended.err.splitlines() if line.strip() and not line.startswith("caution")]
    assert len(lines) == 1, ended.err
    assert "no CUDA device" in lines[0]
    assert "Use auto" in lines[0]


def test_the_kind_of_device_is_recorded_and_a_fit_goes_on_only_on_that_kind(tmp_path: Path) -> None:
    (planned,) = plan(tmp_path, patients=12, epochs=1)[:1]
    record = execute(planned)
    assert record["device"] == "cpu"
    assert record["precision"] == "float32"
    assert "device" not in planned.job.model_dump()
    other = tmp_path / "other"
    fit(planned.job, other)
    (other / "fit.json").unlink()
    body = files.read_json(other / "job.json")
    assert body["device"] == "cpu"
    files.publish_json(other / "job.json", {**body, "device": "cuda"})
    with pytest.raises(RunError, match="another device"):
        fit(planned.job, other)


def test_precision_is_recorded_and_what_the_cpu_lacks_is_noted(tmp_path: Path) -> None:
    (planned,) = plan(tmp_path, patients=12, epochs=1, train=', precision = "bfloat16"')[:1]
    record = execute(planned)
    assert (record["precision"], record["fit"]["notes"]) == ("bfloat16", [])
    with pytest.warns(UserWarning, match="TF32"):
        record = execute(with_recipe(planned.model_copy(update={"folder": str(tmp_path / "t")}), precision="tf32"))
    assert record["precision"] == "float32"
    assert "TF32" in record["fit"]["notes"][0]


def test_orders_are_dealt_where_the_bag_is() -> None:
    bag = nested_bag(40, 2).to("meta")
    rng = torch.Generator().manual_seed(0)
    assert all(order.device.type == "meta" for order in random_orders(bag, rng))
    assert shuffled(bag, rng).device.type == "meta"
    assert bag.ancestors(0).device.type == "meta"
    assert bag.to("meta") is bag
    here = nested_bag(40, 2)
    same = torch.arange(len(here.levels[0])), torch.arange(40)
    assert torch.equal(reorder(here, list(same)).finest.features, here.finest.features)
    assert keep_branches(here, torch.ones(len(here.levels[0]), dtype=torch.bool)).device.type == "cpu"
