"""This process, two others, or two workers of a cluster: the same bytes from every verb that takes --ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from marble.synthetic.cohort import write_cohort
from marble.synthetic.slides import write_slide
from tests.cli.commands import marble
from tests.compute.clusters import cluster_here
from tests.extract.making import tree
from tests.training.test_fit import RESULT

WHERE = {"inline": [], "processes": ["--workers", 2], "cluster": ["--workers", 2, "--ray", "auto"]}
EXPERIMENT = """
cohort = "{cohort}"
bags = {{ store = "{bags}" }}
task = "classification"
split = {{ scheme = "kfold", folds = 4, repeats = 1 }}
train = {{ epochs = {epochs}, warmup = 1, lr = 2e-3, orders = 2, val_orders = 1 }}
models = [{{ name = "abmil", hidden = 16, label = "abmil" }}]
baselines = ["probe"]
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with cluster_here():
        yield


def results(runs: Path) -> dict[str, bytes]:
    """What does not tell how long it took: weights, histories, predictions, tables."""
    kept = (*RESULT, "table.csv", "table.md")
    return {str(p.relative_to(runs)): p.read_bytes() for p in sorted(runs.rglob("*")) if p.name in kept}


def experiment(folder: Path, epochs: int = 2) -> Path:
    """An experiment whose bags are in one place wherever it runs: where they are is part of a fit's name."""
    cohort, store = write_cohort(folder / "cohort", "burden", 24)
    file = folder / "tiny.toml"
    file.write_text(EXPERIMENT.format(cohort=cohort, bags=store.root, epochs=epochs))
    return file


def test_extract(tmp_path: Path) -> None:
    slides = tmp_path / "slides"
    for number in range(5):
        write_slide(slides / f"s{number}.tiff", (1536, 1024), mpp=0.5, seed=number, pieces=2)
    (slides / "broken.tiff").write_bytes(b"II*\x00 and no more")
    settings = ["--magnifications", "5,20", "--tile-px", 64, "--encoder", "colour"]
    found = {}
    for where, flags in WHERE.items():
        ended = marble("extract", slides, "--store", tmp_path / where, *settings, *flags)
        assert ended.code == 1, ended.err  # for the broken one, which costs nobody else anything
        assert "broken.tiff" in ended.err
        found[where] = tree(tmp_path / where)
    assert len(found["inline"]) == 6 + 5 + 2  # records, bags, the settings and what the bags share
    assert found["processes"] == found["inline"]
    assert found["cluster"] == found["inline"]


def test_import(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for side, folder in ((4, tmp_path / "10"), (8, tmp_path / "20")):
        folder.mkdir()
        for name in ("a", "b", "c"):
            places = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2) * (2048 // side)
            with h5py.File(folder / f"{name}.h5", "w") as file:
                file["features"] = rng.standard_normal((len(places), 8)).astype(np.float32)
                file["coords"] = places
    levels = ["--level", f"10:{tmp_path / '10'}", "--level", f"20:{tmp_path / '20'}", "--extents", "512,256"]
    found = {}
    for where, flags in WHERE.items():
        ended = marble("import", *levels, "--tile-px", 256, "--store", tmp_path / where, *flags)
        assert ended.code == 0, ended.err
        found[where] = tree(tmp_path / where)
    assert len(found["inline"]) == 3 + 3 + 2
    assert found["processes"] == found["inline"]
    assert found["cluster"] == found["inline"]


def test_run_and_predict(tmp_path: Path) -> None:
    file = experiment(tmp_path)
    runs, answers = {}, {}
    for where, flags in WHERE.items():
        ended = marble("run", file, "--out", tmp_path / where, *flags)
        assert ended.code == 0, ended.err
        runs[where] = results(tmp_path / where)
    assert sum(name.endswith("predictions.csv") for name in runs["inline"]) == 8
    assert runs["processes"] == runs["inline"]
    assert runs["cluster"] == runs["inline"]

    home, bags, absent = tmp_path / "inline" / "tiny", tmp_path / "cohort" / "bags", tmp_path / "absent.svs"
    for where, flags in WHERE.items():
        table = tmp_path / f"{where}.csv"
        asked = [home / "abmil", absent, bags, "--out", table, "--allow-training-slides", *flags]
        ended = marble("predict", *asked)
        assert ended.code == 1, ended.err
        assert "absent.svs: no such slide, bag or store" in ended.err
        answers[where] = table.read_bytes()
    assert len(answers["inline"].splitlines()) == 1 + len(list(bags.glob("*.safetensors")))
    assert answers["processes"] == answers["inline"]
    assert answers["cluster"] == answers["inline"]
