"""`marble bench learning` and `recipe`: composed, trained and compared, from a folder of bags and labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marble.benchmarks import learning, recipe
from marble.cli import assemble
from marble.errors import InputError
from marble.synthetic.composed import Signal
from tests.synthetic.test_composed import tissue


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the benchmarks take it, and cohorts of a few bags."""
    _, labels = tissue(tmp_path)
    rows = [f"{slide},{patient},{int(marked)}" for slide, (patient, marked) in labels.items()]
    (tmp_path / "labels.csv").write_text("\n".join(["slide_id,patient_id,malignant", *rows]) + "\n")
    monkeypatch.setattr("marble.synthetic.composed.PARTS", {"train": 16, "val": 8, "test": 12})
    monkeypatch.setattr("marble.models.recipe.SMALL_EPOCHS", (1, 1))
    monkeypatch.setattr("marble.models.recipe.SMALL_SURVIVAL_EPOCHS", 1)
    return tmp_path


def test_every_model_has_its_row_beside_the_probe(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = '{ name = "marble", d_state = 4, project = 4 }'
    monkeypatch.setattr(learning, "MODELS", f"[{small}]")
    monkeypatch.setattr(learning, "PEERS", f'[{small}, {{ name = "mean" }}]')
    found = learning.run(
        data / "out.json",
        data=data,
        out=data / "out",
        signals=("fine-only", "survival"),
        strengths=("strong",),
        seeds=(0,),
    )
    assert json.loads((data / "out.json").read_text()) == found
    assert [table["cohort"] for table in found["tables"]] == [
        "fine-only-strong",
        "survival-strong",
        "survival-middle-peers",
    ]
    peers = [set(), set(), {"mean"}]
    for table, metric, beside in zip(found["tables"], ("auc", "c_index", "c_index"), peers, strict=True):
        rows = {row["model"]: row for row in table["models"]}
        assert set(rows) == {"marble(d_state=4,project=4)", "probe", "tiles"} | beside
        assert all(row["metric"] == metric for row in rows.values())
        assert rows["probe"]["p_holm"] is not None
    by_probe = {row["model"]: row["mean"] for row in found["tables"][0]["models"]}["probe"]
    written = (data / "out" / "learning.md").read_text()
    assert f"| probe | {by_probe:.3f} [" in written
    assert "| mean | " in written
    assert (data / "out" / "learning.svg").read_text().count("survival-middle-peers") == 1
    assert by_probe > 0.9  # the share of marked tiles is what a mean sees


def test_the_search_writes_a_row_per_candidate_and_cohort(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {
        "base": recipe.Candidate('mixer = "mlp", project = 4'),
        "probe": recipe.Candidate(model="probe"),
        "no dropout": recipe.Candidate("dropout = 0.0", longer=2),
    }
    monkeypatch.setattr(recipe, "CANDIDATES", few)
    monkeypatch.setattr(recipe, "SIZES", (12, 18))
    found = recipe.run(
        data / "s.json", data=data, out=data / "out", candidates=tuple(few), signals=("fine-only",), seeds=(100,)
    )
    expected = [(name, "fine-only", bags, 100) for name in few for bags in (12, 18)]
    assert [(row["candidate"], row["signal"], row["bags"], row["seed"]) for row in found["runs"]] == expected
    assert json.loads((data / "s.json").read_text()) == found
    written = (data / "out" / "recipe.md").read_text()
    auc = {(row["candidate"], row["bags"]): row["auc"] for row in found["runs"]}
    apart = [auc["probe", bags] - auc["base", bags] for bags in (12, 18)]
    assert (
        f"| probe | {auc['probe', 12]:.3f} | {auc['probe', 18]:.3f} | {sum(apart) / 2:+.3f}, {min(apart):+.3f} |"
        in written
    )
    longer = json.loads(next((data / "out" / "runs" / "no-dropout-fine-only-12").rglob("run.json")).read_text())
    assert longer["fit"]["epochs"] == 2


def test_candidates_are_judged_by_all_of_their_network_unless_by_its_share() -> None:
    settings = {name: recipe._cohort(name, "fine-only", 48, 100).train for name in recipe.CANDIDATES}
    assert "share_folds" not in settings.pop("with its share")
    assert "share_folds" not in settings.pop("four networks with their share")
    assert "share_folds" not in settings.pop("probe")  # which is solved, and has no network
    assert all(train.endswith("share_folds = 0") or "share_folds = 0," in train for train in settings.values())


def test_differences_to_the_first_candidate_are_paired_by_cohort_and_seed() -> None:
    signals: tuple[Signal, Signal] = ("cross-scale", "fine-only")
    auc = {("base", 1): (0.8, 0.6), ("base", 2): (0.9, 0.7), ("other", 1): (0.9, 0.6), ("other", 2): (0.8, 0.9)}
    tried = [
        recipe.Tried(name, signal, 48, seed, value, 0.1, 0.0, 1.0)
        for (name, seed), values in auc.items()
        for signal, value in zip(signals, values, strict=True)
    ]
    # seed 1: +0.1 and 0; seed 2: -0.1 and +0.2; so 0.05 in both, and no error between them
    assert "| other | 0.850 | 0.750 | +0.050 ± 0.000, -0.100 | 0.10 |" in recipe.markdown(tried)
    assert "| other | 0.900 | 0.600 | +0.050, +0.000 | 0.10 |" in recipe.markdown([t for t in tried if t.seed == 1])


def test_a_quick_one_keeps_the_strength_that_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MODELS", '[{ name = "mean" }]')
    found = learning.run(data=data, out=data / "o", quick=True, signals=("fine-only",), strengths=("strong",))
    assert [table["cohort"] for table in found["tables"]] == ["fine-only-strong"]


def test_without_tissue_there_is_one_line() -> None:
    said = CliRunner().invoke(assemble(), ["bench", "learning"])
    assert isinstance(said.exception, InputError)
    assert "--data" in str(said.exception)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["learning", "--signals", "fine-only,fien-only"], "did you mean"),
        (["learning", "--seeds", "0,x"], "not whole numbers"),
        (["recipe", "--strengths", "weak"], "does not look at --strengths"),
        (["recipe", "--candidates", "base,bass"], "'bass'"),
        (["learning", "--candidates", "base"], "does not look at --candidates"),
    ],
)
def test_cohorts_that_do_not_exist_are_refused(flags: list[str], said: str) -> None:
    found = CliRunner().invoke(assemble(), ["bench", *flags])
    assert isinstance(found.exception, InputError)
    assert said in str(found.exception).lower()


def test_some_cohorts_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MODELS", '[{ name = "marble", d_state = 4, project = 4 }]')
    asked = ["--signals", "fine-only", "--strengths", "strong", "--seeds", "3", "--no-peers"]
    CliRunner().invoke(
        assemble(), ["bench", "learning", "--data", str(data), "--out", str(data / "o"), *asked], catch_exceptions=False
    )
    assert "| Model | fine-only-strong |" in (data / "o" / "learning.md").read_text()
    assert "1 seed (3)" in (data / "o" / "learning.md").read_text()


def test_seeds_of_one_comparison_do_not_call_each_other_earlier_settings(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each seed is an experiment file of its own in the same folder."""
    monkeypatch.setattr(learning, "MODELS", '[{ name = "mean", hidden = 8 }]')
    learning.run(data=data, out=data / "o", signals=("fine-only",), strengths=("strong",), seeds=(3, 4), peers=False)
    ended = CliRunner().invoke(
        assemble(), ["report", str(data / "o" / "runs" / "fine-only-strong"), "--out", str(data / "report")]
    )
    assert ended.exit_code == 0, ended.output
    assert "CAUTION" not in ended.output
