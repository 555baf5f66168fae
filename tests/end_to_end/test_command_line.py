"""The verbs, as a user types them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from marble.cli import assemble
from marble.errors import MarbleError
from marble.synthetic.cohort import write_cohort
from marble.synthetic.slides import Planted, write_slide
from marble.version import VERSION

EXPERIMENT = """
cohort = { path = "synthetic:%s", patients = 24 }
task = "%s"
split = { scheme = "kfold", folds = 4, repeats = 1 }
train = { recipe = "%s", epochs = 2, warmup = 1, lr = 2e-3, orders = 2, val_orders = 1 }
models = [
  { name = "marble", d_state = 8, label = "marble" },
  { name = "abmil", hidden = 16, label = "abmil" },
  { name = "mean", hidden = 8, label = "mean, chosen", choose = { dropout = [0.0, 0.5] } },
]
"""


def _marble(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), [str(argument) for argument in arguments])


def _experiment(folder: Path, kind: str, task: str) -> Path:
    path = folder / "tiny.toml"
    recipe = "small" if task == "classification" else "common"  # one each: four fits of a slide's linear term take long
    path.write_text(EXPERIMENT % (kind, task, recipe))
    return path


@pytest.mark.parametrize(("kind", "task"), [("burden", "classification"), ("survival", "survival")])
def test_run_report_predict_verify(tmp_path: Path, kind: str, task: str) -> None:
    out = tmp_path / "out"
    done = _marble("run", _experiment(tmp_path, kind, task), "--out", out)
    assert done.exit_code == 0, done.output
    report = out / "tiny" / "report"
    page = (report / "index.html").read_text()
    assert "mean, chosen" in page
    assert "<script" not in page
    assert page.count("<img") >= (6 if task == "classification" else 3)
    rows = list(csv.DictReader((report / "table.csv").open()))
    assert [row["model"] for row in rows] == ["marble", "abmil", "mean, chosen", "probe", "tiles"]
    metric = "auc" if task == "classification" else "c_index"
    assert all(0 <= float(row[f"{metric}_low"]) <= float(row[f"{metric}_high"]) <= 1 for row in rows)
    assert rows[0][f"{metric}_p_holm"] == ""
    assert all(0 < float(row[f"{metric}_p_holm"]) <= 1 for row in rows[1:])
    assert "Slides in: " in (report / "table.md").read_text()
    assert "Sites: not known." in (report / "table.md").read_text()

    before = {path: path.read_bytes() for path in report.iterdir()}
    assert _marble("report", out / "tiny", "--out", tmp_path / "again").exit_code == 0
    for path, data in before.items():
        assert (tmp_path / "again" / path.name).read_bytes() == data  # the same predictions, the same bytes

    run = out / "tiny" / "marble" / "0"
    answers = tmp_path / "answers.csv"
    others = [tmp_path / "none.svs", report / "table.csv", tmp_path / "tiny.toml"]
    said = _marble("predict", run, out / "tiny" / "cohort" / "bags", *others, "--out", answers)
    assert said.exit_code == 1
    assert "none.svs: no such slide, bag or store" in said.output
    assert "table.csv: a table, not a slide" in said.output
    assert "tiny.toml: settings, not a slide" in said.output
    stored = {row["slide_ids"]: row for row in csv.DictReader((run / "predictions.csv").open())}
    column = "p_positive" if task == "classification" else "risk"
    for row in csv.DictReader(answers.open()):
        if row["slide_id"] in stored:
            assert row[column] == stored[row["slide_id"]][column]  # to the last digit
    assert _marble("verify", out).exit_code == 0
    (run / "predictions.csv").write_text((run / "predictions.csv").read_text().replace("0.", "0.0", 1))
    broken = _marble("verify", out)
    assert broken.exit_code == 1
    assert "predictions changed since they were written" in broken.output
    with pytest.raises(MarbleError, match="predictions changed"):
        raise _marble("report", out / "tiny", "--out", tmp_path / "refused").exception or AssertionError


def test_slides_to_bags(tmp_path: Path) -> None:
    for number in range(2):
        lesion = [Planted("lesion", (512, 512, 512, 512))] if number else []
        write_slide(tmp_path / "slides" / f"00{number}.tiff", (1536, 1280), mpp=0.5, seed=number, planted=lesion)
    (tmp_path / "slides" / "bad.tiff").write_bytes(b"II*\0 not a slide")
    seen = _marble("tile", tmp_path / "slides", "--out", tmp_path / "previews", "--magnifications", "5,20")
    assert seen.exit_code == 1
    assert (tmp_path / "previews" / "000.png").exists()
    assert json.loads((tmp_path / "previews" / "001.geojson").read_text())
    store = tmp_path / "bags"
    made = _marble("extract", tmp_path / "slides", "--store", store, "--magnifications", "5,20", "--encoder", "colour")
    assert made.exit_code == 1
    assert "bad.tiff" in made.output
    bags = sorted(path.name for path in store.rglob("*.safetensors"))
    assert bags == ["000.safetensors", "001.safetensors"]
    (tmp_path / "slides" / "bad.tiff").unlink()
    again = _marble("extract", tmp_path / "slides", "--store", store, "--magnifications", "5,20", "--encoder", "colour")
    assert again.exit_code == 0, again.output
    assert _marble("verify", store).exit_code == 0
    planned = _marble("plan", tmp_path / "slides", "--magnifications", "5,20", "--encoder", "colour")
    assert planned.exit_code == 0, planned.output
    assert "2 slides" in planned.output


def test_the_module_is_the_command() -> None:
    said = subprocess.run([sys.executable, "-m", "marble", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"marble {VERSION}\n"


def test_split_and_its_audit(tmp_path: Path) -> None:
    table, _ = write_cohort(tmp_path, "burden", 20)
    made = _marble("split", table, "--out", tmp_path / "splits", "--repeats", "2")
    assert made.exit_code == 0, made.output
    clean = _marble("split", table, "--check", tmp_path / "splits" / "holdout")
    assert clean.exit_code == 0, clean.output
    leaky = tmp_path / "splits_0.csv"
    leaky.write_text(",train,val,test\n0,P0001-S0,P0002-S0,P0001-S1\n")
    table.write_text("case_id,slide_id,label\nP0001,P0001-S0,a\nP0001,P0001-S1,a\nP0002,P0002-S0,b\n")
    found = _marble("split", table, "--check", leaky)
    assert found.exit_code == 1
    assert "P0001" in found.output


def test_split_where_slides_of_a_patient_differ(tmp_path: Path) -> None:
    table = tmp_path / "mixed.csv"
    rows = [f"P{i},P{i}-{label},{label}" for i in range(6) for label in "ab"]
    table.write_text("\n".join(["case_id,slide_id,label", *rows]) + "\n")
    refused = _marble("split", table, "--out", tmp_path / "splits", "--scheme", "kfold", "--folds", "3")
    assert "--scored-by" in str(refused.exception)
    chosen = ("--scheme", "kfold", "--folds", "3", "--repeats", "1", "--scored-by", "slide")
    made = _marble("split", table, "--out", tmp_path / "splits", *chosen)
    assert made.exit_code == 0, made.output
    assert "scored by slide, split by case" in made.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "{tmp}/none.toml"), "no such file"),
        (("bench", "modle"), "unknown benchmark 'modle'; did you mean 'model'?"),
        (("split",), "give a cohort table and --out, or --check FILE"),
        (("tile", "{tmp}", "--out", "{tmp}/o", "--magnifications", "5,x"), "'5,x' is not a list of numbers"),
        (("tile", "{tmp}", "--out", "{tmp}/o"), "give --magnifications"),
        (("verify", "{tmp}"), "neither a store of bags nor a run"),
        (("report", "{tmp}"), "no finished run here"),
        (("extract", "{tmp}", "--store", "{tmp}/s", "--magnifications", "5,20", "--encoder", "un_v1"), "uni_v1"),
    ],
)
def test_wrong_input_says_what_where_and_next(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    result = _marble(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert result.exit_code != 0
    assert isinstance(result.exception, MarbleError), result.exception
    assert says in str(result.exception)


def test_an_unknown_key_or_option_names_the_valid_ones(tmp_path: Path) -> None:
    path = _experiment(tmp_path, "burden", "classification")
    path.write_text(path.read_text().replace("epochs = 2", "epoch = 2"))
    assert "did you mean 'epochs'?" in str(_marble("run", path, "--out", tmp_path).exception)
    path.write_text(path.read_text().replace("epoch = 2", "epochs = 2").replace("d_state", "d_stat"))
    assert "did you mean 'd_state'?" in str(_marble("run", path, "--out", tmp_path).exception)


def test_doctor_says_what_works() -> None:
    result = _marble("doctor", "--all")
    assert result.exit_code == 0, result.output
    for word in ("torch", "scan backend", "encoder lite0", "OpenSlide"):
        assert word in result.output
