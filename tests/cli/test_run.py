"""`marble run` on a store in which something is wrong: the rest goes on, and what is done is never replaced."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from marble.bags.bag import Bag, Level
from marble.bags.store import BagStore
from marble.synthetic.bags import BagRecipe
from marble.synthetic.cohort import write_cohort
from tests.cli.running import marble

EXPERIMENT = """
cohort = "cohort.csv"
task = "classification"
bags = { store = "bags" }
split = { scheme = "holdout", repeats = 2 }
train = { recipe = "common", epochs = 1, warmup = 0, orders = 1, val_orders = 1 }
models = [{ name = "mean", hidden = 8, label = "mean" }]
baselines = []
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_cohort(tmp_path, "burden", 60, BagRecipe(dim=8), two_slides=0.0)
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    return tmp_path


def _damage(folder: Path) -> list[str]:
    """Three slides, each harmed in another way; a fourth without its record is not done, which is no damage."""
    bags = folder / "bags"
    flipped = bags / "P0003-S0.safetensors"
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 0xFF
    flipped.write_bytes(bytes(data))
    (bags / "P0008-S0.safetensors").unlink()
    (bags / "P0013-S0.json").write_text("{")
    (bags / "P0018-S0.json").unlink()
    return ["P0003-S0", "P0008-S0", "P0013-S0"]


def test_damaged_bags_are_left_out_and_named_and_the_rest_is_trained(folder: Path) -> None:
    harmed = _damage(folder)
    said = marble("run", folder / "tiny.toml", "--out", folder / "runs")
    assert said.code == 1, said.output
    assert [[slide for slide in harmed if slide in line] for line in said.failed] == [[slide] for slide in harmed]
    assert all("so the slide was left out. " in line for line in said.failed), said.failed
    assert "Slides in: 60, used: 56, excluded: 1 no bag in the store; 3 with a damaged bag" in said.output
    runs = sorted((folder / "runs" / "tiny" / "mean").iterdir())
    assert [run.name for run in runs] == ["0", "1"]
    for run in runs:
        parts = json.loads((run / "run.json").read_text())["parts"]
        assert len({slide for part in parts.values() for slide in part}) == 56
    assert (folder / "runs" / "tiny" / "report" / "index.html").is_file()
    before = {run: (run / "run.json").read_bytes() for run in runs}
    again = marble("run", folder / "tiny.toml", "--out", folder / "runs")
    assert again.code == 1
    assert {run: (run / "run.json").read_bytes() for run in runs} == before


def test_runs_that_are_done_are_not_replaced_by_runs_without_a_slide(folder: Path) -> None:
    assert marble("run", folder / "tiny.toml", "--out", folder / "runs").code == 0
    shutil.rmtree(folder / "runs" / "tiny" / "mean" / "1")
    run = folder / "runs" / "tiny" / "mean" / "0"
    before = (run / "run.json").read_bytes()
    _damage(folder)
    said = marble("run", folder / "tiny.toml", "--out", folder / "runs")
    assert said.code == 2
    (line,) = said.output.splitlines()
    assert "P0003-S0.safetensors: bytes changed" in line
    assert f"{run} was made with it. Extract or copy the slide again, or give another --out" in line
    assert (run / "run.json").read_bytes() == before
    elsewhere = marble("run", folder / "tiny.toml", "--out", folder / "others")
    assert elsewhere.code == 1, elsewhere.output
    assert len(list(csv.DictReader((folder / "others/tiny/report/table.csv").open()))) == 1


def test_a_bag_of_a_test_slide_that_was_made_again_is_asked_again(folder: Path) -> None:
    one = EXPERIMENT.replace("repeats = 2", "repeats = 1")
    (folder / "tiny.toml").write_text(one)
    assert marble("run", folder / "tiny.toml", "--out", folder / "runs").code == 0
    run, store = folder / "runs" / "tiny" / "mean" / "0", BagStore(folder / "bags")
    before = _test_rows(run)
    weights = (run / "model.safetensors").read_bytes()
    slide = min(before)
    bag = store.load(slide)
    store.save(bag.with_levels([replace(level, features=level.features + 3) for level in bag.levels]))
    assert marble("run", folder / "tiny.toml", "--out", folder / "runs").code == 0
    after = _test_rows(run)
    assert {name for name in before if after[name] != before[name]} == {slide}
    assert (run / "model.safetensors").read_bytes() == weights
    done = (run / "run.json").stat().st_mtime_ns
    assert marble("run", folder / "tiny.toml", "--out", folder / "runs").code == 0
    assert (run / "run.json").stat().st_mtime_ns == done


def _test_rows(run: Path) -> dict[str, dict[str, str]]:
    """The stored predictions of test slides, by slide."""
    rows = csv.DictReader((run / "predictions.csv").open())
    return {row["slide_ids"]: row for row in rows if row["part"] == "test"}


def test_slides_without_a_bag_are_said_before_training(folder: Path) -> None:
    with open(folder / "cohort.csv", "a") as table:
        table.write("P0000,P0000-S9,negative\n")
    said = marble("run", folder / "tiny.toml", "--out", folder / "runs")
    assert said.code == 0, said.output
    assert said.output.index("Slides in: 61, used: 60, excluded: 1 no bag in the store") < said.output.index("[1/2]")


def test_a_store_of_nothing_but_damaged_bags_is_one_line(folder: Path) -> None:
    for bag in (folder / "bags").glob("*.safetensors"):
        bag.write_bytes(b"")
    said = marble("run", folder / "tiny.toml", "--out", folder / "runs")
    assert said.code == 2
    assert said.output.startswith("error: ")
    assert "no train patient has a bag" in said.output
    assert "marble verify" in said.output


def test_damaged_bags_are_named_where_they_leave_a_part_without_any(folder: Path) -> None:
    bags = sorted((folder / "bags").glob("*.safetensors"))[1:]
    for bag in bags:
        bag.write_bytes(b"")
    said = marble("run", folder / "tiny.toml", "--out", folder / "runs")
    assert said.code == 1, said.output
    assert f"excluded: {len(bags)} with a damaged bag" in said.output
    for bag in bags:
        assert sum(f"{bag.name}: " in line and "so the slide was left out" in line for line in said.failed) == 1
    assert len(said.failed) == len(bags) + 1
    assert "patient has a bag" in said.failed[-1]


def test_a_validation_part_of_one_class_stops_only_who_would_choose_by_it(folder: Path) -> None:
    """The recipe for small cohorts keeps the last epoch, so it needs no validation metric."""
    table = list(csv.reader((folder / "cohort.csv").open()))
    label = table[0].index("label")
    kinds = sorted({row[label] for row in table[1:]})
    for number, row in enumerate(table[1:]):
        row[label] = kinds[number < 2]  # two patients of the second class: training and test have one each
    with (folder / "cohort.csv").open("w", newline="") as file:
        csv.writer(file).writerows(table)
    text = (folder / "tiny.toml").read_text().replace("repeats = 2", "repeats = 1")
    (folder / "tiny.toml").write_text(text)
    chosen = marble("run", folder / "tiny.toml", "--out", folder / "chosen")
    assert chosen.code == 1
    assert "so no checkpoint could be chosen" in chosen.output
    (folder / "tiny.toml").write_text(text.replace('"common", epochs = 1, warmup = 0', '"small", epochs = 1'))
    last = marble("run", folder / "tiny.toml", "--out", folder / "last")
    assert last.code == 0, last.output
    assert (folder / "last" / "tiny" / "report" / "index.html").is_file()
    fit = json.loads((folder / "last" / "tiny" / "mean" / "0" / "run.json").read_text())["fit"]
    assert isinstance(fit["val"]["auc"], str)  # says why there is none


def _narrow(bags: Path, *odd: str) -> None:
    """The store anew as an import without the encoder's name leaves it, with narrower tokens in these bags."""
    held = [_with_tokens(bag, 6 if bag.slide_id in odd else 8) for bag in BagStore(bags)]
    shutil.rmtree(bags)
    for bag in held:
        BagStore(bags).save(bag)


def _with_tokens(bag: Bag, dim: int) -> Bag:
    levels = [Level(level.features[:, :dim].clone(), level.cells, level.parent, level.ratio) for level in bag.levels]
    return Bag(bag.slide_id, levels)


@pytest.mark.parametrize("odd", ["P0000-S0", "P0031-S0"])
def test_a_bag_of_another_width_is_left_out_and_named_wherever_it_stands(folder: Path, odd: str) -> None:
    _narrow(folder / "bags", odd)
    said = marble("run", folder / "tiny.toml", "--out", folder / "runs")
    assert said.code == 1, said.output
    (line,) = said.failed
    assert line.startswith(f"{odd}: 2 levels of tokens 6 wide, but 2 levels of tokens 8 wide in 59 other bags, so the")
    assert "Slides in: 60, used: 59, excluded: 1 with a bag of another shape than most" in said.output
    assert len(list((folder / "runs" / "tiny" / "mean").glob("*/run.json"))) == 2


def test_two_widths_of_equally_many_bags_are_one_line(folder: Path) -> None:
    _narrow(folder / "bags", *(f"P{number:04d}-S0" for number in range(30)))
    said = marble("run", folder / "tiny.toml", "--out", folder / "runs")
    assert said.code == 2
    assert "30 with 2 levels of tokens 6 wide (as 'P0000-S0')" in said.output
