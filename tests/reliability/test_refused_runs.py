"""Runs, bags and half-done fits that do not belong together are refused, never answered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marble import files
from marble.bags.bag import Bag
from marble.bags.provenance import EncoderIdentity, Geometry, Provenance
from marble.bags.store import BagStore
from marble.errors import BagError, RunError
from marble.training.results import sealed
from marble.training.run import PlannedRun, execute
from tests.bags.making import random_bag
from tests.cli.running import marble
from tests.training.jobs import plan, with_recipe

Record = Callable[[str, object], None]
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]
TWO = '[{ name = "abmil", hidden = 16 }, { name = "mean", hidden = 16 }]'


def other_weights(run: Path, other: Path) -> None:
    shutil.copy(other / "model.safetensors", run)


def other_fit(run: Path, other: Path) -> None:
    for name in ("model.safetensors", "fit.json"):
        shutil.copy(other / name, run)


def other_record(run: Path, other: Path) -> None:
    shutil.copy(other / "run.json", run)


def another_model_sealed(run: Path, other: Path) -> None:
    """As somebody would who knows how records are sealed."""
    record, theirs = (files.read_json(folder / "run.json") for folder in (run, other))
    files.publish_json(run / "run.json", sealed(record | {"model": theirs["model"]}))


def classes_in_another_order(run: Path, other: Path) -> None:
    record = files.read_json(run / "run.json")
    record["task"]["classes"] = record["task"]["classes"][::-1]
    files.publish_json(run / "run.json", record)


REFUSED = {
    other_weights: "model.safetensors is missing or changed",
    other_fit: "fit.json belongs to another fit than run.json",
    other_record: "fit.json belongs to another fit than run.json",
    another_model_sealed: "weights do not fit the model",
    classes_in_another_order: "the seal is broken",
}
ENCODERS = {"name": "another", "weights_sha256": "0" * 64, "revision": "v2"}


def test_a_run_of_other_weights_classes_or_encoder_answers_nothing(tmp_path: Path, record_property: Record) -> None:
    plans = plan(tmp_path, models=TWO, epochs=1)
    first, second = (next(one for one in plans if one.job.model == name) for name in ("abmil", "mean"))
    for planned in (first, second):
        execute(planned)
    store = BagStore(first.job.store)
    slide = json.loads(Path(first.test).read_text())["cases"][0]["slides"][0]
    assert marble("predict", first.folder, store.bag_path(slide)).code == 0
    for change, says in REFUSED.items():
        broken = tmp_path / change.__name__
        shutil.copytree(first.folder, broken)
        change(broken, Path(second.folder))
        ended = marble("predict", broken, store.bag_path(slide), "--out", tmp_path / "out.csv")
        assert ended.code == 2, change.__name__
        assert says in ended.output, ended.output
        assert not (tmp_path / "out.csv").exists()
    bag = store.load(slide)
    for field, value in ENCODERS.items():
        (encoder,) = bag.provenance.encoders
        made = bag.provenance.model_copy(update={"encoders": (encoder.model_copy(update={field: value}),)})
        other = BagStore(tmp_path / f"bags-{field}")
        other.save(Bag(slide, bag.levels, made))
        ended = marble("predict", first.folder, other.root, "--out", tmp_path / "out.csv")
        assert ended.code == 1, field
        assert "but the run was trained on those of" in ended.output
        assert not (tmp_path / "out.csv").exists()
    record_property("cases", len(REFUSED) + len(ENCODERS))


def changes(planned: PlannedRun) -> dict[str, PlannedRun]:
    job = planned.job

    def other(**update: Any) -> PlannedRun:
        return planned.model_copy(update={"job": job.model_copy(update=update)})

    return {
        "learning rate": with_recipe(planned, lr=1e-5),
        "epochs": with_recipe(planned, epochs=2),
        "options": other(options=job.options | {"hidden": 8}),
        "seed": other(seed=99),
        "threads": other(threads=2),
        "bags": other(bags_sha256="1" * 64),
        "split": other(split="another"),
        "patients": other(train=job.train[:-1]),
        "orders": other(orders=job.orders + 1),
    }


def test_resuming_with_anything_changed_is_refused_or_stamped(tmp_path: Path, record_property: Record) -> None:
    planned = plan(tmp_path, epochs=1)[0]
    execute(planned)
    for name in ("fit.json", "run.json"):
        Path(planned.folder, name).unlink()
    for what, other in changes(planned).items():
        moved = other.model_copy(update={"folder": str(tmp_path / what)})
        shutil.copytree(planned.folder, moved.folder)
        with pytest.raises(RunError, match="started with another job than it would be resumed with"):
            execute(moved)
        record = execute(moved.model_copy(update={"allow_drift": True}))
        assert record["fit"]["drift"] is True, what
    record_property("cases", len(changes(planned)))


BASE = Provenance(
    source="marble 1",
    spec="spec-1",
    levels=(Geometry(magnification=5, mpp=2, tile_px=256, l0_extent_px=2048),),
    encoders=(EncoderIdentity(name="lite0", dim=8, input_px=256, weights_sha256="a" * 64, revision="r1"),),
)


def provenances() -> dict[str, Provenance]:
    def encoder(**update: Any) -> Provenance:
        return BASE.model_copy(update={"encoders": (BASE.encoders[0].model_copy(update=update),)})

    def level(**update: Any) -> Provenance:
        return BASE.model_copy(update={"levels": (BASE.levels[0].model_copy(update=update),)})

    return {
        "encoder": encoder(name="uni_v1"),
        "weights": encoder(weights_sha256="b" * 64),
        "width": encoder(dim=16),
        "input": encoder(input_px=224),
        "revision": encoder(revision="r2"),
        "precision": encoder(precision="float16"),
        "no encoder": BASE.model_copy(update={"encoders": ()}),
        "tile": level(tile_px=512),
        "magnification": level(magnification=10.0),
        "settings": BASE.model_copy(update={"spec": "spec-2"}),
        "tool": BASE.model_copy(update={"source": "another 1"}),
    }


def test_bags_made_otherwise_are_refused_naming_both_sides(tmp_path: Path, record_property: Record) -> None:
    for what, made in provenances().items():
        store, other = BagStore(tmp_path / what / "one"), BagStore(tmp_path / what / "other")
        store.save(Bag("a", random_bag("a").levels, BASE))
        strange = Bag("b", random_bag("b").levels, made)
        with pytest.raises(BagError, match=r"provenance differs in '\w+': .* here, .* in bag 'b'"):
            store.save(strange)
        other.save(strange)
        for path in (store.bag_path("b"), store.record_path("b")):  # and copied past the store's own door
            path.write_bytes((other.root / path.name).read_bytes())
        with pytest.raises(
            BagError, match=r"b\.safetensors: provenance differs in '\w+': .* here, .* in .*store\.json"
        ):
            store.load("b")
    record_property("cases", 2 * len(provenances()))
