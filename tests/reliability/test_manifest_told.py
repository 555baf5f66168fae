"""A table says how many of its slides no manifest of hashes vouched for."""

from __future__ import annotations

from pathlib import Path

import pytest

from marble import files
from marble.synthetic.slides import write_slide
from tests.cli.running import marble
from tests.extract.test_any_folder import SETTINGS

CHECKED, UNCHECKED = 5, 7
EXPERIMENT = """
cohort = { path = "cohort.csv" }
bags = { store = "bags" }
task = "classification"
split = { scheme = "kfold", folds = 3, repeats = 1 }
train = { recipe = "common", epochs = 1, warmup = 0, orders = 1, val_orders = 1 }
models = [{ name = "mean", hidden = 8 }]
"""


def _slides(folder: Path, numbers: range) -> list[Path]:
    names = [folder / f"s{number:02}.tiff" for number in numbers]
    return [write_slide(path, (512, 384), mpp=0.5, pieces=1, seed=int(path.stem[1:])) for path in names]


@pytest.mark.reliability
@pytest.mark.timeout(600)
def test_a_table_says_how_many_slides_no_manifest_vouched_for(tmp_path: Path) -> None:
    checked = _slides(tmp_path / "checked", range(CHECKED))
    unchecked = _slides(tmp_path / "unchecked", range(CHECKED, CHECKED + UNCHECKED))
    sums = "".join(f"{files.sha256_file(path)}  {path.name}\n" for path in checked)
    (tmp_path / "sums.txt").write_text(sums)
    options = ("--store", tmp_path / "bags", *SETTINGS)
    assert marble("extract", tmp_path / "checked", *options, "--manifest", tmp_path / "sums.txt").code == 0
    assert marble("extract", tmp_path / "unchecked", *options).code == 0
    rows = [f"{path.stem},{path.stem},{'ab'[n % 2]}\n" for n, path in enumerate([*checked, *unchecked])]
    (tmp_path / "cohort.csv").write_text("slide_id,patient,label\n" + "".join(rows))
    (tmp_path / "study.toml").write_text(EXPERIMENT)
    ended = marble("run", tmp_path / "study.toml", "--out", tmp_path / "runs")
    assert ended.code == 0, ended.output
    said = f"Not checked against a manifest of hashes: {UNCHECKED} of the slides used."
    assert marble("report", tmp_path / "runs" / "study", "--out", tmp_path / "report").code == 0
    for name in ("table.md", "table.tex", "index.html"):
        assert said in (tmp_path / "report" / name).read_text(), name
