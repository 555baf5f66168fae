"""A report that shows runs of an experiment's earlier settings says so, wherever it is read."""

from __future__ import annotations

from pathlib import Path

from marble.synthetic.cohort import write_cohort
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry
from tests.cli.running import Ended, marble
from tests.viewer.client import get

EXPERIMENT = """
name = "tiny"
cohort = "cohort.csv"
task = "classification"
bags = {{ store = "bags" }}
split = {{ scheme = "kfold", folds = {folds}, seed = {seed} }}
decision = "{decision}"
models = [{models}]
baselines = []
"""
BOTH = '{ name = "tiles" }, { name = "probe" }'
CAUTION = "CAUTION: these runs are shown as earlier settings made them, the experiment file asks for others or none: "


def _run(root: Path, seed: int = 0, folds: int = 3, models: str = BOTH, decision: str = "argmax") -> Ended:
    text = EXPERIMENT.format(seed=seed, folds=folds, models=models, decision=decision)
    (root / "tiny.toml").write_text(text)
    return marble("run", root / "tiny.toml", "--out", root / "runs")


def _told(root: Path, ended: Ended, words: str | None) -> None:
    """On the terminal, in the page and the table, in a report made anew, and in the viewer."""
    report, again = root / "runs" / "tiny" / "report", root / "again"
    anew = marble("report", root / "runs" / "tiny", "--out", again)
    registry = build_registry(root / "runs")
    (experiment,) = registry.experiments
    shown = get(create_app(registry), f"/results/{experiment}").body.decode()
    texts = [ended.output, (report / "index.html").read_text(), (report / "table.md").read_text(), anew.output, shown]
    for text in texts:
        if words is None:
            assert "CAUTION" not in text
        else:
            assert CAUTION + words in " ".join(text.split())


def test_a_report_says_which_of_its_runs_the_experiment_no_longer_asks_for(tmp_path: Path) -> None:
    write_cohort(tmp_path, "burden", patients=12)
    first = _run(tmp_path)
    assert first.code == 0, first.output
    _told(tmp_path, first, None)
    more = _run(tmp_path, models=f'{{ name = "mean", recipe = "common" }}, {BOTH}')
    _told(tmp_path, more, None)
    other = _run(
        tmp_path, models='{ name = "mean", hidden = 8, recipe = "common", label = "mean" }, { name = "tiles" }'
    )
    assert other.code == 1
    assert len(other.failed) == 3
    _told(tmp_path, other, "mean/0, mean/1, mean/2, probe/0, probe/1, probe/2.")
    fewer = _run(tmp_path, models='{ name = "probe" }')
    assert fewer.code == 0, fewer.output
    _told(tmp_path, fewer, "mean/0, mean/1, mean/2, tiles/0, tiles/1, tiles/2.")
    (tmp_path / "runs" / "tiny" / "mean").rename(tmp_path / "mean")
    _told(tmp_path, _run(tmp_path), None)
    (tmp_path / "runs" / "tiny" / "asked.json").write_text("[]")
    damaged = marble("report", tmp_path / "runs" / "tiny", "--out", tmp_path / "again")
    assert damaged.code == 2
    assert damaged.output.endswith("asked.json: holds a list, not an object. Make it again with `marble run`\n")
    assert _run(tmp_path).code == 0


def test_runs_moved_elsewhere_are_taken_as_they_are(tmp_path: Path) -> None:
    write_cohort(tmp_path, "burden", patients=12)
    assert _run(tmp_path).code == 0
    (tmp_path / "moved").mkdir()
    (tmp_path / "runs" / "tiny" / "probe").rename(tmp_path / "moved" / "probe")
    ended = marble("report", tmp_path / "moved", "--out", tmp_path / "report")
    assert ended.code == 0, ended.output
    assert "CAUTION" not in ended.output


def test_a_study_that_is_moved_with_its_bags_goes_on(tmp_path: Path) -> None:
    write_cohort(tmp_path / "here", "burden", patients=12)
    models = '{ name = "mean", hidden = 8, recipe = "common" }, { name = "tiles" }'
    assert _run(tmp_path / "here", models=models).code == 0
    (tmp_path / "here").rename(tmp_path / "there")
    runs = sorted((tmp_path / "there" / "runs").glob("tiny/*/*/run.json"))
    made = [run.stat().st_mtime_ns for run in runs]
    unfinished = runs[0].parent
    for name in ("run.json", "predictions.csv"):  # killed before its predictions were written
        (unfinished / name).unlink()
    ended = _run(tmp_path / "there", models=models)
    assert ended.code == 0, ended.output
    assert [run.stat().st_mtime_ns for run in runs][1:] == made[1:]
    _told(tmp_path / "there", ended, None)


def test_runs_of_other_splits_than_earlier_ones_are_listed_as_failed_although_there_is_no_report(
    tmp_path: Path,
) -> None:
    write_cohort(tmp_path, "burden", patients=12)
    assert _run(tmp_path).code == 0
    ended = _run(tmp_path, seed=1, models=f'{BOTH}, {{ name = "tiles", level = 0, label = "coarse" }}')
    assert ended.code == 1
    assert [line.split(":")[0].split("/")[-2:] for line in ended.failed[:2]] == [["tiles", "0"], ["probe", "0"]]
    assert len(ended.failed) == 7
    assert "were not tested on the same patients" in ended.failed[-1]
    assert "Remove the runs of earlier settings (probe/0, " in ended.failed[-1]


def test_runs_of_another_label_than_earlier_ones_are_not_put_beside_them(tmp_path: Path) -> None:
    table, _ = write_cohort(tmp_path, "burden", patients=18)
    assert marble("split", table, "--out", tmp_path / "splits", "--folds", 3).code == 0
    files_of = 'split = { scheme = "files", files = "splits/kfold-3" }'
    text = EXPERIMENT.replace('split = {{ scheme = "kfold", folds = {folds}, seed = {seed} }}', "{split}")

    def run(model: str) -> Ended:
        path = tmp_path / "tiny.toml"
        path.write_text(text.format(split=files_of, decision="argmax", models=f'{{ name = "{model}" }}'))
        return marble("run", path, "--out", tmp_path / "runs")

    assert run("tiles").code == 0
    other = {"negative": "positive", "positive": "negative"}
    head, *rows = table.read_text().splitlines()
    cells = [row.rsplit(",", 1) for row in rows]
    table.write_text("\n".join([head, *(f"{name},{other[label]}" for name, label in cells)]) + "\n")
    ended = run("probe")
    assert ended.code == 1
    assert "have other targets for the same patients" in ended.failed[-1]
    assert "Remove the runs of earlier settings (tiles/0, tiles/1, tiles/2)" in ended.failed[-1]


def test_runs_that_call_by_another_rule_are_not_put_beside_earlier_ones(tmp_path: Path) -> None:
    write_cohort(tmp_path, "burden", patients=18)
    assert _run(tmp_path, models='{ name = "tiles" }').code == 0
    ended = _run(tmp_path, decision="threshold")
    assert ended.code == 1
    assert "some runs call a class from a threshold on and others do not" in ended.failed[-1]
    assert "Remove the runs of earlier settings (tiles/0, tiles/1, tiles/2)" in ended.failed[-1]


def test_runs_of_other_slides_than_earlier_ones_say_which_are_in_the_way(tmp_path: Path) -> None:
    _, store = write_cohort(tmp_path, "burden", patients=18)
    assert _run(tmp_path, models='{ name = "tiles" }').code == 0
    second = next(slide for slide in store.slide_ids() if slide.endswith("-S1"))
    for path in (store.bag_path(second), store.record_path(second)):
        path.unlink()
    ended = _run(tmp_path)
    assert ended.code == 1
    assert "runs of one table were made from different slides" in ended.failed[-1]
    # the one that was tested on that slide is evaluated again, the others were trained on it
    assert "Remove the runs of earlier settings (tiles/0, tiles/2)" in ended.failed[-1]
