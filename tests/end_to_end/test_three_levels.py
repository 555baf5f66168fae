"""Three levels and routing, as a user meets them: drawn slides, the command line, and what the reader was asked for."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.cli import assemble
from marble.compute import Inline
from marble.errors import MarbleError
from marble.models.routing import descendants
from marble.prediction import Predictor, chooser_of
from marble.slides.slide import Slide
from marble.synthetic.slides import Planted, write_slide
from marble.training.routing import FEW_CASES, calibrate
from marble.training.run_folder import RunFolder
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.cli.commands import marble
from tests.compute.clusters import cluster_here
from tests.compute.test_same_bytes import WHERE
from tests.extract.making import tree
from tests.viewer.client import get

EXPERIMENT = """
cohort = "cohort.csv"
task = "classification"
bags = { store = "bags" }
split = { scheme = "kfold", folds = 4, repeats = 1 }
train = { recipe = "common", epochs = 1, warmup = 0, lr = 1e-3, orders = 2, val_orders = 1 }
models = [{ name = "marble", d_state = 8, label = "marble" }]
"""
LATTICE = ("--magnifications", "5,10,20", "--tile-px", "64", "--encoder", "colour")


def _marble(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), [str(argument) for argument in arguments])


def _ok(*arguments: object) -> Result:
    done = _marble(*arguments)
    assert done.exit_code == 0, f"{done.output}\n{done.exception}"
    return done


@dataclass(frozen=True)
class World:
    """Slides, their bags at three magnifications, and one trained and routed run."""

    root: Path
    store: BagStore
    run: Path

    def slide(self, number: int) -> Path:
        return self.root / "slides" / f"P{number:02d}.tiff"

    def ask(self, out: Path, *arguments: object) -> dict[str, dict[str, str]]:
        _ok("predict", self.run, *arguments, "--out", out, "--allow-training-slides")
        return {row["slide_id"]: row for row in csv.DictReader(out.open())}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("three")
    rows = ["case_id,slide_id,label"]
    for number in range(12):
        lesion = [Planted("lesion", (300, 250, 320, 320))] if number % 2 else []
        write_slide(
            root / "slides" / f"P{number:02d}.tiff", (1024, 768), mpp=0.5, seed=number, planted=lesion, pieces=1
        )
        rows.append(f"P{number:02d},P{number:02d},{'tumour' if number % 2 else 'benign'}")
    (root / "cohort.csv").write_text("\n".join(rows) + "\n")
    (root / "three.toml").write_text(EXPERIMENT)
    _ok("extract", root / "slides", "--store", root / "bags", *LATTICE)
    (store,) = [path.parent for path in (root / "bags").rglob("store.json")]
    _ok("run", root / "three.toml", "--out", root / "runs")
    run = root / "runs" / "three" / "marble" / "0"
    _ok("route", run, "--bags", store, "--tolerance", "0.05", "--budgets", "0.25,0.5")
    return World(root, BagStore(store), run)


@dataclass
class Reader:
    """What was asked of the slides: how many pixels of the slide's own plane, as boxes."""

    boxes: list[tuple[int, int, int]]  # width and height in level-0 pixels, width of the picture

    def finest_area(self) -> int:
        """Level-0 pixels that were read at full resolution."""
        return sum(width * height for width, height, out_px in self.boxes if out_px == width)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    seen = Reader([])
    real = Slide.read

    def read(self: Slide, l0_box: Any, out_px: Any, *rest: Any, **more: Any) -> Any:
        _left, _top, width, height = l0_box
        seen.boxes.append((int(width), int(height), int(out_px[0])))
        return real(self, l0_box, out_px, *rest, **more)

    monkeypatch.setattr(Slide, "read", read)
    monkeypatch.setattr("marble.compute.Processes", lambda *_, **__: Inline())  # where reads can be counted
    return seen


def test_bags_runs_and_reports_have_three_levels(world: World) -> None:
    bag = world.store.load("P00")
    assert bag.depth == 3
    assert [level.ratio for level in bag.levels] == [None, 2, 2]
    assert json.loads((world.run / "run.json").read_text())["model"]["options"]["levels"] == 3
    page = (world.root / "runs" / "three" / "report" / "index.html").read_text()
    assert "marble" in page
    assert _marble("verify", world.root).exit_code == 0


def test_a_budget_chosen_on_few_cases_is_called_a_guess(world: World) -> None:
    record = json.loads((world.run / "routing.json").read_text())
    assert record["cases"] < FEW_CASES
    assert f"chosen on {record['cases']} validation cases" in record["caution"]
    said = _marble("route", world.run, "--bags", world.store.root, "--tolerance", "0.05", "--budgets", "0.25,0.5")
    assert f"caution: {record['caution']}" in said.output
    assert json.loads((world.run / "routing.json").read_text()) == record
    bag = world.store.load("P01")
    for budget, told in (
        (None, record["budget"] < 1),
        (record["budget"], record["budget"] < 1),
        (0.33, False),
        (1.0, False),
    ):
        warned = Predictor(world.run, routed=True, budget=budget).answer(bag).warnings
        assert (f"routed: {record['caution']}" in warned) == told


def test_heatmaps_have_a_picture_for_each_level(world: World, tmp_path: Path) -> None:
    _ok("heatmap", world.run, world.slide(1), "--out", tmp_path, "--size", "256", "--top", "2")
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    for level in range(3):
        assert any(f"level{level}" in name or f"level-{level}" in name for name in names), names


def test_the_viewer_has_a_map_for_each_level(world: World) -> None:
    registry = build_registry(world.root / "runs", world.root / "slides", world.store.root)
    app, slide = create_app(registry), key_of("slide", "P01")
    lattice = get(app, f"/api/slides/{slide}").json()
    assert len(lattice["levels"]) == 3
    run = next(entry.key for entry in registry.runs.values() if entry.model == "marble")
    for mode, levels in (("attention", [0, 1, 2]), ("gradient", [0, 1, 2]), ("occlusion", [0])):
        body = get(app, f"/api/slides/{slide}/runs/{run}/{mode}").json()
        assert [one["level"] for one in body["maps"]] == levels
        for one in body["maps"]:
            assert len(one["values"]) * 2 == len(lattice["levels"][one["level"]]["cells"])


def test_budget_one_is_bitwise_the_unrouted_model(world: World, tmp_path: Path) -> None:
    plain = world.ask(tmp_path / "plain.csv", world.store.root)
    whole = world.ask(tmp_path / "whole.csv", world.store.root, "--budget", "1.0")
    routed = world.ask(tmp_path / "routed.csv", world.store.root, "--routed", "--budget", "1.0")
    assert plain == whole
    for slide, row in plain.items():
        tiles = routed[slide].pop("fine_tiles")
        assert routed[slide] == row  # to the last digit
        assert int(tiles) == len(world.store.load(slide).finest)


def test_a_slide_and_its_bag_are_routed_alike(world: World, tmp_path: Path) -> None:
    for budget in ("0.25", "0.5"):
        from_bag = world.ask(tmp_path / "bag.csv", world.store.root, "--budget", budget)["P01"]
        from_slide = world.ask(tmp_path / "slide.csv", world.slide(1), "--budget", budget)["P01"]
        assert from_slide == from_bag
        assert int(from_bag["fine_tiles"]) <= max(4, float(budget) * len(world.store.load("P01").finest))


def test_the_first_run_chooses_the_tiles_for_all_runs_asked_together(world: World, tmp_path: Path) -> None:
    other = next(path.parent for path in world.run.parent.glob("*/run.json") if path.parent != world.run)
    assert not (other / "routing.json").exists()  # only the first needs a router
    together = ("--with", other, "--budget", "0.25")
    from_bag = world.ask(tmp_path / "bag.csv", world.store.root, *together)["P01"]
    from_slide = world.ask(tmp_path / "slide.csv", world.slide(1), *together)["P01"]
    assert from_slide == from_bag
    alone = world.ask(tmp_path / "alone.csv", world.slide(1), "--budget", "0.25")["P01"]
    assert from_bag["fine_tiles"] == alone["fine_tiles"]
    first, second = Predictor(world.run, budget=0.25), Predictor(other)
    seen = first.looked_at(world.store.load("P01"))
    odds = [
        np.log(p["p_tumour"] / p["p_benign"])
        for p in (one.answer(seen).readout for one in (Predictor(world.run), second))
    ]
    assert float(from_bag["p_tumour"]) == pytest.approx(1 / (1 + np.exp(-np.mean(odds))), rel=1e-9)
    backwards = _marble("predict", other, world.slide(1), "--with", world.run, "--budget", "0.25")
    assert "this run has no router" in str(backwards.exception)


def test_tiles_that_are_not_kept_are_never_read(world: World, tmp_path: Path, reader: Reader) -> None:
    tiles = len(world.store.load("P03").finest)
    world.ask(tmp_path / "a.csv", world.slide(3), "--budget", "1.0")
    assert reader.finest_area() == tiles * 64 * 64
    reader.boxes.clear()
    row = world.ask(tmp_path / "b.csv", world.slide(3), "--budget", "0.25")["P03"]
    assert int(row["fine_tiles"]) < 0.5 * tiles
    assert reader.finest_area() == int(row["fine_tiles"]) * 64 * 64


def test_extract_keeps_chosen_branches_in_a_folder_of_their_own(world: World, tmp_path: Path) -> None:
    _ok("extract", world.slide(5), "--store", tmp_path, *LATTICE, "--route", world.run, "--budget", "0.25")
    (folder,) = [path.parent for path in tmp_path.rglob("store.json")]
    assert folder.name.startswith(f"{world.store.root.name}-routed-")
    kept, whole = BagStore(folder).load("P05"), world.store.load("P05")
    for few, all_of in zip(kept.levels, whole.levels, strict=True):
        place = {tuple(cell): i for i, cell in enumerate(all_of.cells.tolist())}
        index = [place[tuple(cell)] for cell in few.cells.tolist()]
        assert np.array_equal(few.features.numpy(), all_of.features[index].numpy())
    assert len(kept.finest) < len(whole.finest)
    said = world.ask(tmp_path / "kept.csv", folder, "--budget", "0.25")["P05"]
    assert said == world.ask(tmp_path / "whole.csv", world.store.root, "--budget", "0.25")["P05"]
    _ok("extract", world.slide(5), "--store", tmp_path, *LATTICE, "--route", world.run, "--budget", "0.5")
    assert len(list(tmp_path.rglob("store.json"))) == 2  # another choice, another folder
    assert _marble("verify", tmp_path).exit_code == 0


def test_a_router_that_is_made_again_chooses_from_then_on(world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(world.run, run)

    def chosen_by_extraction() -> list[list[bool]]:
        chooser = chooser_of(run, 0.25)
        return [chooser.keep(*_coarsest(world.store.load(slide))).tolist() for slide in world.store.slide_ids()]

    before = chosen_by_extraction()
    calibrate(RunFolder.open(run), world.store, 0.05, (0.25,), seed=1)
    routing = Predictor(run, routed=True, budget=0.25).routing
    assert routing is not None
    now = []
    for slide in world.store.slide_ids():
        seen, below, total, depth = _coarsest(world.store.load(slide))
        now.append(routing.keep(seen, torch.from_numpy(below), total, depth).tolist())
    assert now != before
    assert chosen_by_extraction() == now


def _coarsest(bag: Bag) -> tuple[Bag, NDArray[np.int64], int, int]:
    """What extraction asks of a chooser after the coarsest level."""
    return bag.with_levels(bag.levels[:1]), descendants(bag, 0).numpy(), len(bag.finest), bag.depth


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_routing_on_a_cluster_chooses_and_says_the_same(world: World, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    stores, answers = {}, {}
    with cluster_here():
        for where, flags in WHERE.items():
            chosen = ("--route", world.run, "--budget", "0.25", *flags)
            ended = marble("extract", world.slide(1), world.slide(2), "--store", tmp_path / where, *LATTICE, *chosen)
            assert ended.code == 0, ended.err
            stores[where] = tree(tmp_path / where)
            out = tmp_path / f"{where}.csv"
            asked = (world.slide(3), world.slide(4), "--budget", "0.25", "--out", out, "--allow-training-slides")
            ended = marble("predict", world.run, *asked, *flags)
            assert ended.code == 0, ended.err
            answers[where] = out.read_bytes()
    assert stores["inline"] == stores["processes"] == stores["cluster"]
    assert answers["inline"] == answers["processes"] == answers["cluster"]


def test_the_seal_of_the_routing(world: World, tmp_path: Path) -> None:
    record = json.loads((world.run / "routing.json").read_text())
    assert [point["budget"] for point in record["curve"]] == [0.25, 0.5, 1.0]
    assert all(0 < point["share"] <= 1 for point in record["curve"])
    assert record["curve"][-1]["share"] == 1
    assert record["budget"] in (0.25, 0.5, 1.0)
    copy = tmp_path / "copy"

    def broken(file: str, change: Any) -> str:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(world.run, copy)
        change(copy / file)
        verdict = _marble("verify", copy)
        assert verdict.exit_code == 1
        said = _marble("predict", copy, world.store.root, "--routed")
        assert isinstance(said.exception, MarbleError)
        return str(said.exception)

    def other_budget(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"budget": 0.125}))

    assert "routing.json: changed since it was written" in broken("routing.json", other_budget)
    assert "routing.safetensors: missing or changed" in broken("routing.safetensors", Path.unlink)

    def other_run(path: Path) -> None:  # the router of one fold beside the model of another
        shutil.rmtree(copy)
        shutil.copytree(world.run.parent / "1", copy)
        for name in ("routing.json", "routing.safetensors"):
            shutil.copy(world.run / name, copy / name)

    assert "routing.json: made for another run" in broken("routing.json", other_run)


def test_what_cannot_be_routed_is_said_in_one_line(world: World, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(world.run, copy)
    (copy / "routing.json").unlink()
    for arguments, says in (
        (("predict", copy, world.store.root, "--budget", "0.25"), "this run has no router. Make it with `marble route"),
        (("predict", world.run, world.store.root, "--budget", "1.5"), "budget must be more than 0 and at most 1"),
        (("extract", world.slide(0), "--store", tmp_path, *LATTICE, "--budget", "0.5"), "Give --route RUN too"),
        (("route", world.run, "--bags", tmp_path), "no bags here"),
        (("route", world.run, "--bags", world.store.root, "--budgets", "a"), "not a list of shares"),
        (("route", world.run, "--bags", world.store.root, "--tolerance", "-1"), "must not be negative"),
    ):
        said = _marble(*arguments)
        assert isinstance(said.exception, MarbleError), said.output
        assert says in str(said.exception)


def test_bags_of_other_levels_are_refused_in_words_of_a_run(world: World, tmp_path: Path) -> None:
    """A prediction advised to build another model, and a router was learned on any lattice."""
    lattice = ("--magnifications", "5,20", "--tile-px", "64", "--encoder", "colour")
    _ok("extract", world.slide(0), world.slide(1), "--store", tmp_path, *lattice)
    asked = _marble("predict", world.run, tmp_path, "--allow-training-slides")
    assert asked.exit_code == 1
    hint = "Give the slide itself, or a bag of 3 levels, as the run was trained on"
    assert f"the bag has 2 levels, the model was built for 3. {hint}" in " ".join(asked.output.split())
    before = (world.run / "routing.json").read_bytes()
    refused = _marble("route", world.run, "--bags", tmp_path)
    assert isinstance(refused.exception, MarbleError)
    assert "not made like the training bags" in str(refused.exception)
    assert "Give the store that the run was trained on" in str(refused.exception)
    assert (world.run / "routing.json").read_bytes() == before


def test_of_a_folder_of_stores_a_verb_takes_the_one_like_the_runs_own(world: World, tmp_path: Path) -> None:
    run, stores = tmp_path / "run", tmp_path / "bags"
    shutil.copytree(world.run, run)
    shutil.copytree(world.store.root, stores / world.store.root.name)
    _ok(
        "extract",
        world.slide(0),
        "--store",
        stores,
        "--magnifications",
        "5,10",
        "--tile-px",
        "64",
        "--encoder",
        "colour",
    )
    _ok("route", run, "--bags", stores, "--budgets", "0.5")
    _ok("heatmap", run, "P01", "--store", stores, "--out", tmp_path / "maps", "--top", "0")
    assert len(list((tmp_path / "maps").glob("*.png"))) == 3
    _ok("report", world.run.parents[1], "--store", stores, "--out", tmp_path / "report")
    said = _marble("split", world.root / "cohort.csv", "--out", tmp_path / "splits", "--store", stores)
    assert "Give one of them, for example" in str(said.exception)
