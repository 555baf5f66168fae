"""A slide scanned again under another patient: refused by every command that has the bags, or told in every table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from marble.bags import Bag, BagStore, Level
from marble.bags.lookalikes import Look
from marble.door import fit
from marble.errors import SplitError
from tests.bags.test_lookalikes import drawn, scanned_again
from tests.cli.running import marble

PATIENTS = 12
EXPERIMENT = """
cohort = {{ path = "cohort.csv" }}
bags = {{ store = "bags" }}
task = "classification"
split = {{ scheme = "kfold", folds = 3, repeats = 1, allow_leaks = {allowed} }}
train = {{ recipe = "common", epochs = 1, warmup = 0, orders = 1, val_orders = 1 }}
models = [{{ name = "mean" }}]
baselines = []
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Twelve patients, of whom the last is the first under another name, scanned again."""
    looks = [drawn(number) for number in range(PATIENTS - 1)]
    store = BagStore(tmp_path / "bags")
    for number, look in enumerate([*looks, scanned_again(looks[0], 0, shift=(2, 1))]):
        store.save(bag(look, f"s{number:02}"))
    rows = [f"s{number:02},p{number:02},{'ab'[number % 2]}\n" for number in range(PATIENTS)]
    (tmp_path / "cohort.csv").write_text("slide_id,patient,label\n" + "".join(rows))
    return tmp_path


def bag(look: Look, slide_id: str) -> Bag:
    return Bag(slide_id, [Level(torch.from_numpy(look.tokens), torch.from_numpy(look.cells + 3))])


def experiment(study: Path, *, allowed: bool) -> Path:
    path = study / "leaky.toml"
    path.write_text(EXPERIMENT.format(allowed=str(allowed).lower()))
    return path


def test_a_run_is_refused_naming_slides_patients_and_parts(study: Path) -> None:
    ended = marble("run", experiment(study, allowed=False), "--out", study / "runs")
    assert ended.code == 2
    assert {"s00 (patient p00)", "s11 (patient p11)"} <= _named(ended.output)
    assert "with the same tissue as one of" in ended.output
    assert "allow_leaks" in ended.output
    assert not list(study.rglob("run.json"))


def _named(text: str) -> set[str]:
    return {name for name in ("s00 (patient p00)", "s11 (patient p11)", "s01 (patient p01)") if name in text}


def test_allowed_every_table_says_leaky(study: Path) -> None:
    ended = marble("run", experiment(study, allowed=True), "--out", study / "runs")
    assert ended.code == 0, ended.output
    assert marble("report", study / "runs" / "leaky", "--out", study / "report").code == 0
    tables = [path for path in (study / "report").iterdir() if path.suffix in (".csv", ".md", ".tex", ".html")]
    assert {path.suffix for path in tables if path.stem in ("table", "index")} == {".csv", ".md", ".tex", ".html"}
    for path in tables:
        if path.stem in ("table", "index"):
            assert "LEAKY" in path.read_text(encoding="utf-8"), path


def test_splits_are_not_made_and_others_are_told(study: Path) -> None:
    table, store = study / "cohort.csv", ("--store", study / "bags")
    refused = marble("split", table, "--out", study / "splits", "--folds", 3, *store)
    assert refused.code == 2
    assert _named(refused.output) == {"s00 (patient p00)", "s11 (patient p11)"}
    assert not (study / "splits").exists()
    assert marble("split", table, "--out", study / "splits", "--folds", 3).code == 0  # nobody knows without the bags
    assert marble("split", table, "--check", study / "splits").code == 0
    checked = marble("split", table, "--check", study / "splits", *store)
    assert checked.code == 1
    assert "leak: 1 slide of" in checked.output
    assert _named(checked.output) == {"s00 (patient p00)", "s11 (patient p11)"}


def test_one_patient_may_have_both(study: Path) -> None:
    table = study / "cohort.csv"
    table.write_text(table.read_text().replace("s11,p11,b", "s11,p00,a"))
    ended = marble("run", experiment(study, allowed=False), "--out", study / "runs")
    assert ended.code == 0, ended.output


def test_a_fit_in_python_is_refused_too_unless_it_is_asked_for(study: Path) -> None:
    targets = {f"s{number:02}": "ab"[number % 2] for number in range(PATIENTS)}
    asked: dict[str, Any] = {"model": "mean", "test": ["s11"], "recipe": "common", "epochs": 1, "warmup": 0}
    with pytest.raises(SplitError, match=r"s00 \(patient s00\).*s11 \(patient s11\).*allow_leaks=True"):
        fit(study / "bags", targets, **asked)
    run = fit(study / "bags", targets, allow_leaks=True, **asked)
    (said,) = run.record["about"]["leaks"]
    assert "s00 (patient s00)" in said
    assert "s11 (patient s11)" in said
    one_patient = {slide: "p" if slide in ("s00", "s11") else slide for slide in targets}
    fit(study / "bags", {**targets, "s11": "a"}, groups=one_patient, **{**asked, "test": ["p"]})
