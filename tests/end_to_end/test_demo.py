"""`marble demo` as a newcomer types it: small in the usual suite, as it ships in the slow one."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from sklearn.metrics import roc_auc_score

from marble import demo
from marble.errors import InputError
from marble.reports.collect import collect
from marble.synthetic.two_scales import MARGIN_PX, REGION_PX, plan_slide
from tests.cli.commands import marble


def test_the_demo_ends_with_table_report_heatmap_and_what_to_type_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "PATIENTS", 20)
    monkeypatch.setattr(demo, "EXPERIMENT", demo.EXPERIMENT.replace("folds = 5", "folds = 3"))
    monkeypatch.setattr("marble.models.recipe.SMALL_EPOCHS", (1, 1))
    done = marble("demo", "--out", tmp_path / "demo", "--workers", 1)
    assert done.code == 0, done.err
    rows = csv.DictReader((tmp_path / "demo" / "report" / "table.csv").open())
    assert [row["model"] for row in rows] == ["marble", "abmil, 20x", "marble, 20x only", "probe", "tiles"]
    assert demo.HOW_TO_READ in done.out
    assert (tmp_path / "demo" / "report" / "index.html").is_file()
    told = [Path(line.removeprefix("heatmap: ")) for line in done.out.splitlines() if line.startswith("heatmap: ")]
    assert [path.name.split("-attention-")[1] for path in told] == ["level0.png", "level1.png", "tiles.png"]
    assert all(path.is_file() for path in told)
    # The two lines at the end are commands.
    predict = next(line for line in done.out.splitlines() if line.startswith("ask the model about a slide:  marble "))
    command, run, slide = predict.removeprefix("ask the model about a slide:  marble ").rsplit(maxsplit=2)
    asked = marble(command, run.strip("'"), slide)
    assert asked.code == 0, asked.err
    assert f"look around:  marble view {tmp_path / 'demo' / 'runs'}" in done.out


def test_a_folder_of_other_slides_is_refused_and_one_of_the_same_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "demo"
    first = next(demo.run_demo(out, seed=3))
    (out / "slides").mkdir()
    assert next(demo.run_demo(out, seed=3)) == first
    refused = marble("demo", "--out", out, "--seed", 4)
    said = f"error: {out}: this folder does not hold the demo of seed 4 with {demo.PATIENTS} slides. "
    assert (refused.code, refused.err) == (2, said + "Give another --out, or remove this folder\n")
    monkeypatch.setattr(demo, "PATIENTS", 20)
    with pytest.raises(InputError, match="seed 3 with 20 slides"):
        next(demo.run_demo(out, seed=3))


@pytest.mark.parametrize("made", ["slides", "bags", "runs"])
def test_slides_of_which_nothing_says_what_they_are_of_are_not_taken_for_ours(tmp_path: Path, made: str) -> None:
    (tmp_path / made).mkdir()
    with pytest.raises(InputError, match="does not hold the demo of seed 0"):
        next(demo.run_demo(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [made]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_only_the_model_of_both_scales_can_tell(tmp_path: Path, seed: int) -> None:
    done = marble("demo", "--out", tmp_path, "--seed", seed)
    assert done.code == 0, done.err
    results = collect(tmp_path / "runs" / "demo")
    by_model = {model.key: [float(str(repeat.metrics["auc"])) for repeat in model.repeats] for model in results.models}
    assert min(by_model["marble"]) >= 0.95
    for other in ("marble, 20x only", "abmil, 20x", "probe"):
        assert sum(by_model[other]) / len(by_model[other]) < 0.75
    (level_0,), (level_1,) = (list((tmp_path / "heatmaps").glob(f"*-level{k}.geojson")) for k in (0, 1))
    number = int(level_1.name[1:4])
    plan = plan_slide(tumour=True, seed=demo.SEED_STEP * seed + number)
    cells = {place.l0_box[:2] for place in plan.atypical}
    regions = {
        (MARGIN_PX + column * REGION_PX, MARGIN_PX + row * REGION_PX)
        for row, column in {place.region for place in plan.atypical}
    }
    assert glow(level_1, cells) >= 0.9
    assert glow(level_0, regions) >= 0.9


def glow(path: Path, wanted: Iterable[tuple[int, int]]) -> float:
    """How well a map tells the tiles at `wanted` from the others, as an AUC."""
    features = json.loads(path.read_text())["features"]
    corners = [tuple(one["geometry"]["coordinates"][0][0]) for one in features]
    values = [one["properties"]["measurements"]["attention"] for one in features]
    return float(roc_auc_score([corner in set(wanted) for corner in corners], values))
