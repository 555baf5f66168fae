"""`predict` and `heatmap` from a slide file, for runs that know their extraction settings and runs that do not."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from marble import files, preparing
from marble.cli import assemble
from marble.errors import InputError
from marble.extract import ExtractSpec, Machine
from marble.training.results import sealed
from marble.training.run_folder import RunFolder
from tests.viewer.world import SPEC, World, make_world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("slides"), models=("abmil",))


def _marble(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), [str(argument) for argument in arguments])


def _row(path: Path) -> dict[str, str]:
    (row,) = csv.DictReader(path.open())
    return row


def test_settings_can_be_given_to_a_run_on_imported_features(made: World, tmp_path: Path) -> None:
    run, slide = made.run("abmil"), made.slides / "S5.tiff"
    assert _marble("predict", run, slide, "--out", tmp_path / "known.csv").exit_code == 0
    imported = tmp_path / "imported"
    shutil.copytree(run, imported)
    record = files.read_json(run / "run.json")
    record["bags"]["notes"] = {}
    files.publish_json(imported / "run.json", sealed(record))
    refused = _marble("predict", imported, slide)
    assert refused.exit_code == 1
    assert "bags without extraction settings" in refused.output
    assert "--spec FILE.toml" in refused.output
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC.to_toml())
    done = _marble("predict", imported, slide, "--spec", spec, "--out", tmp_path / "given.csv")
    assert done.exit_code == 0, done.output
    assert _row(tmp_path / "given.csv") == _row(tmp_path / "known.csv")
    drawn = _marble("heatmap", imported, slide, "--spec", spec, "--out", tmp_path / "maps", "--size", 128)
    assert drawn.exit_code == 0, drawn.output


def test_a_training_slide_is_known_under_another_name(made: World, tmp_path: Path) -> None:
    renamed = tmp_path / "somebody new.tiff"
    shutil.copy(made.slides / "S0.tiff", renamed)
    said = _marble("predict", made.run("abmil"), renamed)
    assert said.exit_code == 1
    assert "in the training part of this run (the same tiles as slide S0)" in said.output


def test_a_folder_of_stores_is_as_good_as_the_store(made: World, tmp_path: Path) -> None:
    bags = made.store.root.parent
    for source, name in ((bags, "folder"), (made.store.root, "store")):
        said = _marble("predict", made.run("abmil"), source, "--out", tmp_path / name, "--allow-training-slides")
        assert said.exit_code == 0, said.output
    assert (tmp_path / "folder").read_bytes() == (tmp_path / "store").read_bytes()


def test_pixel_size_and_outlines_reach_the_extraction(made: World, tmp_path: Path) -> None:
    run, slide = made.run("abmil"), made.slides / "S5.tiff"
    coarse = _marble("predict", run, slide, "--mpp", "400")
    assert coarse.exit_code == 1
    assert "S5.tiff" in coarse.output
    (tmp_path / "S5.geojson").write_text("{}")
    empty = _marble("predict", run, slide, "--outlines", tmp_path)
    assert empty.exit_code == 1
    assert "S5.geojson" in empty.output
    assert "is not ENCODER=FILE" in str(_marble("predict", run, slide, "--weights", "colour").exception)


def test_outlines_are_found_by_the_slides_id_as_in_an_extraction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path | None] = []
    monkeypatch.setattr("marble.extract.extract_slide", lambda *_, facts, **__: asked.append(facts.outlines))
    job = preparing._SlideJob(0, tmp_path / "S5.ome.tiff", tmp_path / "out")
    options = preparing.SlideOptions(outlines=tmp_path)
    spec, machine = ExtractSpec.parse({"pyramid": {"magnifications": [5.0, 20.0]}}), Machine()
    preparing._prepare(job, spec=spec, options=options, machine=machine, chooser=None)
    assert asked == [tmp_path / "S5.geojson"]  # what `marble tile` calls it


def test_the_outlines_of_one_slide_are_not_laid_over_others(made: World, tmp_path: Path) -> None:
    (tmp_path / "S5.geojson").write_text("{}")
    options = preparing.SlideOptions(outlines=tmp_path / "S5.geojson")
    run = RunFolder.open(made.run("abmil"))
    slides = [made.slides / "S4.tiff", made.slides / "S5.tiff"]
    assert preparing.found_in(slides[1:], run, options)[0] == slides[1:]
    with pytest.raises(InputError, match=r"S5\.geojson: the tissue outlines of one slide, for 2 slides"):
        preparing.found_in(slides, run, options)


@pytest.mark.parametrize("mode", ["attention", "occlusion", "gradient"])
def test_a_class_that_is_not_there_is_named(made: World, tmp_path: Path, mode: str) -> None:
    arguments = ("heatmap", made.run("abmil"), "S5", "--store", made.store.root, "--out", tmp_path, "--mode", mode)
    refused = _marble(*arguments, "--target", "lesions")
    assert "unknown class 'lesions'; did you mean 'lesion'? Valid: none, lesion" in str(refused.exception)
    assert not list(tmp_path.iterdir())
