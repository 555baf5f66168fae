"""A validation part of one class has no AUC: report and viewer say so, and show everything else."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

from marble.synthetic.cohort import write_cohort
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry
from tests.cli.running import marble
from tests.viewer.client import get

EXPERIMENT = """
name = "tiny"
cohort = "cohort.csv"
task = "classification"
bags = { store = "bags" }
split = { scheme = "files", files = "splits" }
models = [{ name = "tiles", choose = { level = [0, 1] } }, { name = "probe" }]
baselines = []
"""
WHY = "undefined (no case of class 'positive')"


def test_a_validation_part_of_one_class_is_told_in_report_and_viewer(tmp_path: Path) -> None:
    table, _ = write_cohort(tmp_path, "burden", patients=16, two_slides=0.0)
    slides = {row["slide_id"]: row["label"] for row in csv.DictReader(table.open())}
    no, yes = ([name for name, label in slides.items() if label == kind] for kind in ("negative", "positive"))
    parts = {"train": [*no[:3], *yes[:4]], "val": no[3:5], "test": [*no[5:], *yes[4:]]}
    (tmp_path / "splits").mkdir()
    columns = itertools.zip_longest(*parts.values(), fillvalue="")
    rows = [",train,val,test", *(",".join([str(k), *row]) for k, row in enumerate(columns))]
    (tmp_path / "splits" / "splits_0.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    ended = marble("run", tmp_path / "tiny.toml", "--out", tmp_path / "runs")
    assert ended.code == 0, ended.output
    assert f"validation auc {WHY}" in ended.output
    page = (tmp_path / "runs" / "tiny" / "report" / "index.html").read_text()
    assert "-inf" not in page
    assert WHY.replace("'", "&#39;") in page
    registry = build_registry(tmp_path / "runs")
    (experiment,) = registry.experiments
    shown = get(create_app(registry), f"/results/{experiment}")
    assert shown.status == 200
    assert f"auc {WHY}".replace("'", "&#39;") in shown.body.decode()
