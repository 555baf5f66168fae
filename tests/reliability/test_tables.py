"""Tables: every slide accounted for, every figure with what it is made of, and nothing that can be changed by hand."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from marble.experiment import Experiment
from marble.reports.collect import collect
from marble.reports.compare import compare
from marble.reports.tables import table_csv, table_latex, table_markdown
from marble.synthetic.cohort import write_cohort
from marble.training.run import execute
from tests.cli.running import marble
from tests.reliability.scale import scaled

Record = Callable[[str, object], None]
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]
EXPERIMENT = """
cohort = "cohort.csv"
task = "%s"
bags = { store = "bags" }
split = { scheme = "kfold", folds = 3, repeats = 1 }
train = { recipe = "common", epochs = 1, warmup = 0, lr = 2e-3, orders = 1, val_orders = 1 }
models = [
  { name = "mean", hidden = 8, label = "mean" },
  { name = "max", hidden = 8, label = "max" },
]
baselines = []
paper = { mean = { %s = 0.9 } }
"""
METRICS = {"classification": "auc", "survival": "c_index"}


def runs(folder: Path, task: str, seed: int) -> Path:
    """The runs of a small cohort in which some slides have no bag."""
    _, store = write_cohort(folder, "survival" if task == "survival" else "burden", 30, seed=seed, two_slides=0.5)
    slides = store.slide_ids()
    for number in range(seed % 3):
        store.record_path(slides[5 * number]).unlink()
    store.note(slides[3], "failed", "read", "truncated")
    path = folder / "tiny.toml"
    path.write_text(EXPERIMENT % (task, METRICS[task]))
    for planned in Experiment.load(path).plan(folder / "out", threads=1):
        execute(planned)
    return folder / "out" / "tiny"


@pytest.fixture(scope="module", params=METRICS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs(tmp_path_factory.mktemp(request.param), request.param, 2)


def test_every_slide_is_accounted_for_in_every_table(tmp_path: Path, record_property: Record) -> None:
    tables = scaled(10)
    for seed in range(tables):
        folder = tmp_path / str(seed)
        root = runs(folder, "survival" if seed % 2 else "classification", seed)
        listed = {row["slide_id"] for row in csv.DictReader((folder / "cohort.csv").open())}
        told = table_markdown(compare(collect(root)))
        found = re.search(r"Slides in: (\d+), used: (\d+), excluded: ([^.]+)\.", told)
        assert found is not None, told
        excluded = [int(number) for number in re.findall(r"(?:^|; )(\d+) ", found[3])]
        assert int(found[1]) == len(listed)
        assert int(found[1]) == int(found[2]) + sum(excluded)
        assert sum(excluded) == seed % 3 + 1
        for run in sorted(path.parent for path in root.rglob("run.json")):
            parts = json.loads((run / "run.json").read_text())["parts"]
            assert sum(len(part) for part in parts.values()) == int(found[2])  # counted by hand, not as told
        one = next(root.rglob("predictions.csv"))
        one.write_text("\n".join(one.read_text().splitlines()[:-1]) + "\n")
        assert "predictions changed since they were written" in marble("report", root, "--out", folder / "no").output
    record_property("cases", tables)


def test_tables_are_built_again_to_the_byte_and_no_changed_digit_is_taken(
    made: Path, tmp_path: Path, record_property: Record
) -> None:
    def tables(root: Path) -> list[str]:
        comparison = compare(collect(root))
        return [table(comparison) for table in (table_csv, table_markdown, table_latex)]

    expected = tables(made)
    moved = tmp_path / "tiny"
    shutil.copytree(made, moved)
    assert tables(moved) == expected
    digits = 0
    for path in sorted(moved.rglob("predictions.csv")):
        whole = path.read_text()
        line = whole.splitlines()[-1]
        for at in [match.start() for match in re.finditer(r"\d", line)][-12::3]:
            changed = line[:at] + str((int(line[at]) + 1) % 10) + line[at + 1 :]
            path.write_text(whole.replace(line, changed))
            ended = marble("report", moved, "--out", tmp_path / "refused")
            assert ended.code == 2
            assert "predictions changed since they were written" in ended.output
            digits += 1
        path.write_text(whole)
    assert tables(moved) == expected
    record_property("cases", len(expected) + digits)


def test_every_figure_says_what_it_is_made_of(made: Path, record_property: Record) -> None:
    comparison = compare(collect(made))
    metric = comparison.results.task.select_by
    rows = list(csv.DictReader(table_csv(comparison).splitlines()))
    records = [json.loads(path.read_text()) for path in made.rglob("run.json")]
    ids = {record["job"] for record in records}
    assert {one for row in rows for one in row["run_ids"].split(" ")} == ids
    figures = 0
    for row in rows:
        assert int(row["runs"]) == len(row["run_ids"].split(" ")) == 3
        for name in comparison.results.metric_names:
            figures += 1
            assert re.match(r"undefined \(.+\)$", row[name]) or float(row[f"{name}_sd"]) >= 0
        assert float(row[f"{metric}_low"]) < float(row[metric]) < float(row[f"{metric}_high"])
    said = table_markdown(comparison)
    assert "mean ± SD over 3 repeats" in said
    assert "[95 % interval by bootstrap over patients]" in said
    assert f"{comparison.results.task.metric_names[metric]} in paper (quoted)" in said
    assert {row["model"]: row[f"{metric}_in_paper"] for row in rows} == {"mean": "0.9", "max": ""}
    record_property("cases", figures)
