"""Several runs together: the mean of their logits, their spread, and nobody's training slide passed off as new."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from marble.bags.provenance import Provenance
from marble.bags.store import BagStore
from marble.cli import assemble
from marble.ensemble import _require_alike
from marble.errors import InputError
from marble.prediction import Predictor
from marble.synthetic.bags import BagRecipe, make_burden_bag
from marble.training.job import TaskSpec
from marble.training.results import read_predictions
from marble.training.run import execute
from marble.training.run_folder import RunFolder
from tests.training.jobs import plan


def _marble(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three repeats of a classifier and one of a survival model, and a store of two new slides."""
    root = tmp_path_factory.mktemp("ensemble")
    planned = plan(root / "classes", epochs=1)
    for one in planned[:3]:
        execute(one)
    times = plan(root / "survival", "survival", epochs=1, repeats=2)
    for one in times:
        execute(one)
    new = BagStore(root / "new")
    for number in range(2):
        new.save(make_burden_bag(f"new-{number}", 0.3, BagRecipe(), seed=7))
    (root / "cohort").symlink_to(Path(planned[0].job.store))
    (root / "model").symlink_to(Path(planned[0].folder).parent)
    (root / "times").symlink_to(Path(times[0].folder).parent)
    (root / "other").symlink_to(Path(times[0].folder))
    return root


def test_repeats_answer_together(runs: Path, tmp_path: Path) -> None:
    said = _marble("predict", runs / "model", runs / "new", "--out", tmp_path / "said.csv")
    assert said.exit_code == 0, said.output
    assert "3 runs together" in " ".join(said.output.split())
    store = BagStore(runs / "new")
    predictors = [Predictor(folder.parent) for folder in sorted((runs / "model").glob("*/run.json"))]
    for row in csv.DictReader((tmp_path / "said.csv").open()):
        each = [predictor.answer(store.load(row["slide_id"])) for predictor in predictors]
        # Two classes: the mean log odds of the calibrated probabilities.
        odds = np.mean([np.log(a.readout["p_positive"]) - np.log(a.readout["p_negative"]) for a in each])
        assert float(row["p_positive"]) == pytest.approx(1 / (1 + np.exp(-odds)), rel=1e-12)
        called = "positive" if odds > 0 else "negative"
        assert row["predicted"] == called
        assert float(row["member_sd"]) == pytest.approx(np.std([a.readout[f"p_{called}"] for a in each], ddof=1))
        assert (row["members"], row["part"]) == ("3", "new")


def _logit_above_training_median(predictor: Predictor, store: BagStore, trained_on: BagStore) -> dict[str, float]:
    """By slide: how far the model's own output lies above that of the median training patient (the lower of two)."""
    of_patient: dict[str, list[float]] = {}
    for slide, entry in predictor.run.record["parts"]["train"].items():
        logit = float(predictor.answer(trained_on.load(slide)).prediction.logits.double()[0])
        of_patient.setdefault(entry["case_id"], []).append(logit)
    means = sorted(float(np.mean(mine)) for mine in of_patient.values())
    median = means[(len(means) - 1) // 2]
    return {bag.slide_id: float(predictor.answer(bag).prediction.logits.double()[0]) - median for bag in store}


def test_risks_count_from_the_training_median_of_their_own_run(runs: Path, tmp_path: Path) -> None:
    """A partial likelihood knows no zero: as the networks have them, the runs' risks lie apart by any constant."""
    new, trained_on = BagStore(runs / "new"), BagStore(next((runs / "survival").rglob("store.json")).parent)
    folders = [path.parent for path in sorted((runs / "times").glob("*/run.json"))]
    each = [_logit_above_training_median(Predictor(folder), new, trained_on) for folder in folders]
    said = _marble("predict", runs / "times", runs / "new", "--out", tmp_path / "said.csv")
    assert said.exit_code == 0, said.output
    for row in csv.DictReader((tmp_path / "said.csv").open()):
        risks = [mine[row["slide_id"]] for mine in each]
        assert float(row["risk"]) == pytest.approx(np.mean(risks), abs=1e-6)
        assert float(row["member_sd"]) == pytest.approx(np.std(risks, ddof=1), abs=1e-6)
    alone = _marble("predict", folders[0], runs / "new", "--out", tmp_path / "alone.csv")
    assert alone.exit_code == 0, alone.output
    for row in csv.DictReader((tmp_path / "alone.csv").open()):
        assert float(row["risk"]) == pytest.approx(each[0][row["slide_id"]], abs=1e-6)
    for folder in folders:
        stored = [float(row["risk"]) for row in read_predictions(folder) if row["part"] == "train"]
        assert sorted(stored)[(len(stored) - 1) // 2] == 0.0


def test_a_report_orders_cases_of_different_runs_by_risks_that_mean_the_same(runs: Path, tmp_path: Path) -> None:
    experiment = (runs / "times").resolve().parent
    assert _marble("report", experiment, "--out", tmp_path).exit_code == 0
    held_out: dict[str, list[float]] = {}
    for path in sorted((runs / "times").glob("*/run.json")):
        rows = read_predictions(path.parent)
        training = sorted(float(row["risk"]) for row in rows if row["part"] == "train")
        for row in rows:
            if row["part"] == "test":
                held_out.setdefault(row["case_id"], []).append(float(row["risk"]) - training[(len(training) - 1) // 2])
    for row in csv.DictReader((tmp_path / "together.csv").open()):
        assert float(row["risk"]) == pytest.approx(np.mean(held_out[row["case_id"]]))
        assert float(row["member_sd"]) == pytest.approx(np.std(held_out[row["case_id"]], ddof=1))


def test_a_training_slide_of_any_member_is_one_of_all(runs: Path, tmp_path: Path) -> None:
    said = _marble("predict", runs / "model", runs / "cohort", "--out", tmp_path / "said.csv")
    assert said.exit_code == 1
    assert "of 3 members" in said.output
    parts = {row["part"] for row in csv.DictReader((tmp_path / "said.csv").open())}
    assert parts == {"train"}  # of four folds, every slide was trained on in two of them


def test_a_run_that_is_given_twice_does_not_count_twice(runs: Path) -> None:
    twice = _marble("predict", runs / "model", runs / "new", "--with", runs / "model" / "0")
    assert "this run is given twice. Name every run once" in str(twice.exception)


def test_runs_that_do_not_belong_together_are_refused(runs: Path) -> None:
    mixed = _marble("predict", runs / "model" / "0", runs / "new", "--with", runs / "other")
    assert "another task than the other runs: survival, not classification" in str(mixed.exception)
    empty = _marble("predict", runs / "new", runs / "new")
    assert "no finished run here" in str(empty.exception)


def test_thresholds_for_different_classes_are_not_averaged() -> None:
    def run(classes: tuple[str, ...] = ("no", "yes"), **choices: Any) -> RunFolder:
        task = TaskSpec(name="classification", classes=classes, **choices).model_dump(mode="json")
        return RunFolder(Path("run"), {"task": task, "bags": Provenance().model_dump(mode="json")})

    for alike in (run(decision="threshold"), run(decision="threshold", positive="yes"), run(positive="no")):
        _require_alike(run(decision="threshold"), alike)
    with pytest.raises(InputError, match="another positive class than the other runs: no, not yes"):
        _require_alike(run(decision="threshold"), run(decision="threshold", positive="no"))
    with pytest.raises(InputError, match="other classes than the other runs: a, b, c, not no, yes as in run"):
        _require_alike(run(), run(("a", "b", "c")))
