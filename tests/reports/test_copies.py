"""Runs that are there twice, as in a copy of their folder: never one table of both, made of the better ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from marble.errors import InputError, RunError
from marble.reports.collect import collect
from marble.training.results import read_run
from marble.training.run import execute
from marble.viewer.pages import Pages
from marble.viewer.registry import build_registry
from tests.training.jobs import plan


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for planned in plan(tmp_path, models='[{ name = "tiles" }]')[:2]:
        execute(planned)
    home = tmp_path / "out"
    shutil.rmtree(home / "tiny" / "cohort")
    shutil.copytree(home / "tiny", home / "before")
    return home


def test_a_table_refuses_them_and_names_both(runs: Path) -> None:
    with pytest.raises(InputError, match=r"before.*tiny.*two runs are repeat 0 of 'tiles'"):
        collect(runs)
    assert len(collect(runs / "before").models[0].repeats) == 2


def test_runs_of_an_earlier_choice_of_task_or_classes_are_named(tmp_path: Path) -> None:
    for folder, kind in (("a", "burden"), ("b", "survival")):
        execute(plan(tmp_path / folder, kind, models='[{ name = "tiles" }]')[0])
    with pytest.raises(InputError) as refused:
        collect(tmp_path)
    runs = [tmp_path / folder / "out" / "tiny" / "tiles" / "0" for folder in "ab"]
    assert str(refused.value) == (
        f"{runs[1]}: this run is of survival, and {runs[0]} of classification of negative, positive. "
        "Remove the runs of earlier settings, or give `marble run` another --out"
    )


def test_the_viewer_shows_them_apart(runs: Path) -> None:
    registry = build_registry(runs)
    assert sorted(one.name for one in registry.experiments.values()) == ["tiny", "tiny (before)"]
    pages = Pages(registry, has_library=True)
    for one in registry.experiments.values():
        assert len([run for run in registry.runs.values() if run.experiment == one.key]) == 2
        assert "mean ± SD over 2 repeats" in pages.results(one)


def test_a_folder_of_runs_is_no_run_and_says_where_one_is(runs: Path) -> None:
    with pytest.raises(RunError, match=r"not a finished run.*Give one of the runs below, as .*tiles.0$"):
        read_run(runs / "tiny" / "tiles")
    with pytest.raises(RunError, match=r"not a finished run.*Finish it with `marble run`"):
        read_run(runs / "tiny" / "held-out")
