"""A run knows who was in it, and its record cannot be changed without a word."""

from __future__ import annotations

import csv
import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from marble import files
from marble.bags.bag import Bag
from marble.bags.provenance import Provenance, SlideIdentity
from marble.bags.store import BagStore
from marble.cli import assemble
from marble.errors import IntegrityError, RunError
from marble.synthetic.bags import BagRecipe, make_bag
from marble.training.membership import Members, Membership, content_sha256
from marble.training.results import read_run, seal_of, sealed
from marble.training.run import PlannedRun, execute
from marble.training.run_folder import RunFolder
from tests.training.jobs import plan


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> PlannedRun:
    made = plan(tmp_path_factory.mktemp("members"), epochs=1)[0]
    execute(made)
    return made


def _marble(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), [str(argument) for argument in arguments])


def _bag(slide_id: str, seed: int = 0) -> Bag:
    return make_bag(slide_id, 0.5, BagRecipe(), seed)


def _with_file(bag: Bag, sha256: str) -> Bag:
    slide = SlideIdentity(name="x", l0_width_px=9, l0_height_px=9, mpp=1.0, mpp_origin="test", sha256=sha256)
    return replace(bag, provenance=Provenance(slide=slide))


def _entry(case: str, bag: Bag, file: str | None = None) -> dict[str, Any]:
    return {"case_id": case, "file_sha256": file, "content_sha256": content_sha256(bag)}


def test_prefixes_are_not_patients() -> None:
    members = Members({"train": {"P1": _entry("P1", _bag("P1", 1))}, "test": {"P10": _entry("P10", _bag("P10", 2))}})
    assert members.of(_bag("P1", 3)).part == "train"
    assert members.of(_bag("P10", 3)).part == "test"
    assert members.of(_bag("P100", 3)).part == "new"


def test_ids_are_compared_in_one_form() -> None:
    members = Members({"train": {"José-1": _entry("José", _bag("a", 1))}})
    assert members.of(_bag(unicodedata.normalize("NFD", "JOSÉ-1"), 3)).part == "train"


def test_a_renamed_slide_is_known_by_its_file_and_by_its_tiles() -> None:
    bag = _bag("S1", 1)
    members = Members({"val": {"S1": _entry("P1", bag, "a" * 64)}})
    assert members.of(_with_file(_bag("other", 2), "a" * 64)).why == "the file of slide S1"
    renamed = replace(bag, slide_id="quite another")
    shuffled = renamed.with_levels([renamed.levels[0]]) if renamed.depth == 1 else renamed
    assert members.of(shuffled).part == "val"
    assert members.of(shuffled).why == "the same tiles as slide S1"
    # The same name on another file is another slide.
    assert members.of(_with_file(_bag("S1", 2), "b" * 64)).part == "new"


def test_a_slide_of_which_only_the_id_is_known_is_said_to_be() -> None:
    bag = _bag("S1", 1)
    members = Members({"train": {"S1": _entry("P1", bag)}})
    assert members.of(bag).why == "by its id"
    other = members.of(_bag("S1", 2))
    assert (other.part, other.why) == ("train", "matched by id only: its tiles differ")
    hashed = Members({"train": {"S1": _entry("P1", bag, "a" * 64)}})
    assert hashed.of(_with_file(_bag("S1", 2), "a" * 64)).why == "by its id"
    assert hashed.of(_bag("S1", 2)).why == "matched by id only: its tiles differ"


@pytest.mark.parametrize(("trained", "asked"), [("float16", "float32"), ("float32", "float16")])
def test_the_same_tokens_in_wider_or_narrower_numbers_are_the_same_slide(trained: str, asked: str) -> None:
    """As export and import leave them: other bytes, equal tokens."""
    half = _bag("S1", 1)
    half = half.with_levels([replace(level, features=level.features.half()) for level in half.levels])

    def kept_as(name: str, slide_id: str) -> Bag:
        dtype = getattr(torch, name)
        levels = [replace(level, features=level.features.to(dtype)) for level in half.levels]
        return replace(half.with_levels(levels), slide_id=slide_id)

    members = Members({"train": {"S1": _entry("P1", kept_as(trained, "S1"))}})
    assert members.of(kept_as(asked, "S1")).why == "by its id"
    found = members.of(kept_as(asked, "quite another"))
    assert (found.part, found.why) == ("train", "the same tiles as slide S1")
    assert members.of(_bag("quite another", 2)).part == "new"


def test_another_slide_of_a_tcga_patient_is_known_by_its_barcode() -> None:
    members = Members({"train": {"TCGA-AA-1234-01Z-00-DX1": _entry("TCGA-AA-1234", _bag("a", 1))}})
    found = members.of(_bag("TCGA-AA-1234-01Z-00-DX2", 2))
    assert (found.part, found.why) == ("train", "its id is of patient TCGA-AA-1234")
    assert members.of(_bag("TCGA-AA-1235-01Z-00-DX1", 2)).part == "new"


def test_the_content_hash_does_not_depend_on_the_stored_order() -> None:
    bag = _bag("S1", 1)
    level = bag.levels[0]
    assert bag.levels[1].parent is not None
    order = torch.randperm(len(level), generator=torch.Generator().manual_seed(0))
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    finer = bag.levels[1].take(torch.arange(len(bag.levels[1])), back[bag.levels[1].parent])
    assert content_sha256(bag.with_levels([level.take(order, None), finer])) == content_sha256(bag)
    assert content_sha256(_bag("S1", 2)) != content_sha256(bag)


def test_the_record_holds_every_slide_of_every_part(planned: PlannedRun) -> None:
    parts = read_run(planned.folder)["parts"]
    test = json.loads(Path(planned.test).read_text())["cases"]
    wanted = {
        "train": {slide for case in planned.job.train for slide in case.slides},
        "val": {slide for case in planned.job.val for slide in case.slides},
        "test": {slide for case in test for slide in case["slides"]},
    }
    assert {part: set(slides) for part, slides in parts.items()} == wanted


def test_predict_names_training_slides_and_fails(planned: PlannedRun, tmp_path: Path) -> None:
    store = BagStore(planned.job.store)
    train, val = planned.job.train[0].slides[0], planned.job.val[0].slides[0]
    test = json.loads(Path(planned.test).read_text())["cases"][0]["slides"][0]
    bags = [store.bag_path(slide) for slide in (train, val, test)]
    table = tmp_path / "said.csv"
    said = _marble("predict", planned.folder, *bags, "--out", table)
    assert said.exit_code == 1
    assert f"failed: {train}: in the training part of this run (by its id)" in said.output
    assert "--allow-training-slides" in said.output
    rows = {row["slide_id"]: row for row in csv.DictReader(table.open())}
    assert [rows[slide]["part"] for slide in (train, val, test)] == ["train", "val", "test"]
    assert "validation part" in rows[val]["warnings"]
    assert rows[test]["warnings"] == ""
    assert _marble("predict", planned.folder, *bags, "--allow-training-slides").exit_code == 0
    assert _marble("predict", planned.folder, *bags[1:]).exit_code == 0
    file = f"elsewhere/{train}.ome.tiff"  # the bag in the store is that of the slide's id, however its file is called
    drawn = _marble("heatmap", planned.folder, file, "--store", store.root, "--out", tmp_path, "--size", 64)
    assert f"caution: {train}: in the training part" in drawn.output
    assert f"caution: {file}: no such file, so the lattice of {train} is drawn without the slide" in drawn.output
    drawn = _marble("heatmap", planned.folder, train, "--store", store.root, "--out", tmp_path, "--size", 64)
    assert "no such file" not in drawn.output
    assert "no such slide or bag. Give a slide file, or" in str(_marble("heatmap", planned.folder, train).exception)
    assert json.loads((tmp_path / f"{train}-attention.json").read_text())["prediction"]["part"] == "train"


def test_a_slide_that_is_named_twice_is_answered_once(planned: PlannedRun, tmp_path: Path) -> None:
    store = BagStore(planned.job.store)
    bag = store.bag_path(planned.job.val[0].slides[0])
    (tmp_path / "linked").symlink_to(store.root, target_is_directory=True)
    table = tmp_path / "said.csv"
    for workers in (1, 2):
        asked = [bag, store.root, tmp_path / "linked", bag, tmp_path / "none", tmp_path / "none"]
        said = _marble("predict", planned.folder, *asked, "--out", table, "--workers", workers)
        slides = [row["slide_id"] for row in csv.DictReader(table.open())]
        assert slides[0] == planned.job.val[0].slides[0]
        assert len(slides) == len(set(slides)) == len(list(store.records()))
        assert said.output.count("none: no such slide, bag or store") == 1


def test_predict_says_the_same_of_many_slides_once(planned: PlannedRun, tmp_path: Path) -> None:
    train, val = ({slide for case in cases for slide in case.slides} for cases in (planned.job.train, planned.job.val))
    table = tmp_path / "said.csv"
    said = _marble("predict", planned.folder, planned.job.store, "--out", table)
    assert said.exit_code == 1
    lines = said.output.splitlines()
    (failed,) = (line for line in lines if line.startswith("failed: "))
    assert failed.startswith(f"failed: {len(train)} slides (")
    assert f" and {len(train) - 5} more): in the training part of this run (by its id): " in failed
    named = failed.partition("(")[2].partition(" and ")[0].split(", ")
    assert len(named) == 5
    assert set(named) < train
    (caution,) = (line for line in lines if line.startswith("caution: "))
    assert caution.startswith(f"caution: {len(val)} slides (")
    assert "): in the validation part of this run (by its id): " in caution
    rows = {row["slide_id"]: row for row in csv.DictReader(table.open())}
    assert {slide for slide, row in rows.items() if row["part"] == "train"} == train
    assert all("training part" in rows[slide]["warnings"] for slide in train)


def _changes(record: dict[str, Any]) -> list[dict[str, Any]]:
    train, val = record["parts"]["train"], record["parts"]["val"]
    return [
        {**record, "task": {**record["task"], "classes": record["task"]["classes"][::-1]}},
        {**record, "calibration": {**record["calibration"], "temperature": 3.0}},
        {**record, "parts": {**record["parts"], "train": val, "val": train}},
        {**record, "orders": record["orders"] + 1},
        {**record, "sha256": {**record["sha256"], "model": "0" * 64}},
        {key: value for key, value in record.items() if key != "seal"},
    ]


def test_a_broken_seal_is_refused_by_all_and_mended_by_run(planned: PlannedRun) -> None:
    path = Path(planned.folder) / "run.json"
    whole = files.read_json(path)
    assert whole["seal"] == seal_of(whole)
    for changed in _changes(whole):
        files.publish_json(path, changed)
        for verb in ("predict", "heatmap"):
            refused = _marble(verb, planned.folder, planned.job.store)
            assert isinstance(refused.exception, IntegrityError)
            assert "the seal is broken" in str(refused.exception)
        view = _marble("view", planned.folder)
        assert "the seal is broken" in str(view.exception)
        verified = _marble("verify", planned.folder)
        assert verified.exit_code == 1
        assert "the seal is broken: run.json is not as it was written" in verified.output
    for body in (b"[]", b"null", b"{}", b"{"):
        path.write_bytes(body)
        with pytest.raises((RunError, IntegrityError)):
            RunFolder.open(planned.folder)
    again = execute(planned)
    assert {**again, "seconds": 0, "seal": ""} == {**whole, "seconds": 0, "seal": ""}


def test_lost_predictions_are_made_again(planned: PlannedRun) -> None:
    path = Path(planned.folder) / "predictions.csv"
    whole = path.read_bytes()
    path.unlink()
    refused = _marble("report", planned.folder)
    assert "predictions.csv is missing" in str(refused.exception)
    execute(planned)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("p_positive", "7.5", "which is not a probability"),
        ("p_positive", "nan", "which is not finite"),
        ("p_positive", "high", "which is not a number"),
        ("p_negative", "0.25", "sum to"),
        ("label", "other", "unknown class 'other'"),
        ("order_sd", "", "not a row of predictions"),
    ],
)
def test_a_row_that_no_prediction_can_be_is_refused(planned: PlannedRun, column: str, value: str, what: str) -> None:
    root = Path(planned.folder)
    before, record = (root / "predictions.csv").read_bytes(), files.read_json(root / "run.json")
    rows = list(csv.DictReader(before.decode().splitlines()))
    rows[1][column] = value
    text = "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n"
    (root / "predictions.csv").write_text(text)
    changed = {**record, "sha256": {**record["sha256"], "predictions": files.sha256_bytes(text.encode())}}
    files.publish_json(root / "run.json", sealed(changed))
    try:
        refused = _marble("report", root)
        assert what in str(refused.exception)
        assert "predictions.csv, line 3" in str(refused.exception)
    finally:
        (root / "predictions.csv").write_bytes(before)
        files.publish_json(root / "run.json", record)


def test_a_validation_slide_is_told_what_may_have_been_chosen_on_it() -> None:
    """Not that the epoch was: a recipe that keeps the last epoch chooses none."""
    said = Membership("val", "by its id").warning
    assert said == (
        "in the validation part of this run (by its id): its epoch, threshold or temperature may have been chosen on it"
    )
    assert Membership("test", "by its id").warning is None
