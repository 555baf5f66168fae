"""A slide with several bags: lattice, size, tissue and values are always those of one and the same bag."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from starlette.types import ASGIApp

from marble.extract import ExtractSpec, SlideFacts, extract_slide
from marble.extract.slide import store_for
from marble.slides.lattice import PyramidSpec
from marble.viewer.app import create_app
from marble.viewer.registry import Registry, build_registry, key_of
from tests.viewer.client import get
from tests.viewer.world import World

OTHER = ExtractSpec(pyramid=PyramidSpec(magnifications=(2.5, 10), tile_px=64), encoders=("colour",))
SLIDE = key_of("slide", "S1")


@pytest.fixture(scope="module")
def both(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Registry, str, str]:
    folder = tmp_path_factory.mktemp("both")
    record = extract_slide(world.slides / "S1.tiff", OTHER, folder / "bags")
    assert record.status == "ok", record.reason
    first, second = store_for(folder / "bags", OTHER), store_for(folder / "bags", _spec_of(world))
    second.save(world.store.load("S1"))
    registry = build_registry(world.runs, world.slides, folder / "bags")
    keys = key_of("bag", first.root), key_of("bag", second.root)
    assert {bag.key for bag in registry.slides[SLIDE].bags} == set(keys)
    return registry, *keys


def _spec_of(world: World) -> ExtractSpec:
    return ExtractSpec.parse(world.store.load("S1").provenance.notes["extract"], where="test")


def test_a_runs_map_comes_with_the_lattice_of_its_own_bag(both: tuple[Registry, str, str], world: World) -> None:
    registry, other, ours = both
    app = create_app(registry)
    bag = world.store.load("S1")
    for run in registry.runs.values():
        maps = get(app, f"/api/slides/{SLIDE}/runs/{run.key}/attention").json()
        assert maps["bag"] == ours
        assert not [said for said in maps["prediction"]["warnings"] if "not made like" in said]
        lattice = get(app, f"/api/slides/{SLIDE}", query=f"bag={maps['bag']}").json()
        assert lattice["bag"] == ours
        for one in maps["maps"]:
            level = lattice["levels"][one["level"]]
            assert len(level["cells"]) == 2 * len(one["values"])
            row, column = level["cells"][:2]
            corner = [level["origin"][0] + column * level["extent"], level["origin"][1] + row * level["extent"]]
            assert corner == bag.boxes(one["level"])[0, :2].tolist()
    assert get(app, f"/api/slides/{SLIDE}", query=f"bag={other}").json()["levels"][0]["magnification"] == 2.5


def test_a_run_whose_bags_are_not_here_says_so(world: World, tmp_path: Path) -> None:
    extract_slide(world.slides / "S1.tiff", OTHER, tmp_path)
    registry = build_registry(world.runs, world.slides, tmp_path)
    app = create_app(registry)
    run = next(iter(registry.runs))
    maps = get(app, f"/api/slides/{SLIDE}/runs/{run}/attention").json()
    assert maps["bag"] == registry.slides[SLIDE].bags[0].key
    assert any("not made like the training bags" in warning for warning in maps["prediction"]["warnings"])


def test_a_bag_of_another_slide_or_none_is_not_there(both: tuple[Registry, str, str]) -> None:
    registry, other, _ = both
    app = create_app(registry)
    elsewhere = key_of("slide", "S0")
    for path in (f"/api/slides/{SLIDE}", f"/api/slides/{SLIDE}/tissue", f"/api/slides/{SLIDE}/pixels/0/0/0"):
        assert get(app, path, query="bag=0123456789abcdef").status == 404
        assert get(app, path, query=f"bag={other}").status == 200
    assert get(app, f"/api/slides/{elsewhere}", query=f"bag={other}").status in (404, 422)


def test_crops_are_cut_by_the_lattice_that_was_asked_for(both: tuple[Registry, str, str]) -> None:
    registry, other, ours = both
    app = create_app(registry)
    counts = {}
    for key in (other, ours):
        finest = get(app, f"/api/slides/{SLIDE}", query=f"bag={key}").json()["levels"][1]
        counts[key] = len(finest["cells"]) // 2
        last = f"/api/slides/{SLIDE}/crops/1/{counts[key] - 1}"
        assert get(app, last, query=f"bag={key}").status == 200
        assert get(app, f"/api/slides/{SLIDE}/crops/1/{counts[key]}", query=f"bag={key}").status == 404
    assert counts[other] != counts[ours]


def outlined(world: World, folder: Path) -> tuple[ASGIApp, list[list[list[int]]]]:
    """A bag made from an outline drawn by hand around the left half of the slide."""
    square = [[0, 0], [700, 0], [700, 1000], [0, 1000], [0, 0]]
    feature = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [square]}}
    drawn = folder / "S1.geojson"
    drawn.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    record = extract_slide(world.slides / "S1.tiff", _spec_of(world), folder / "bags", facts=SlideFacts(outlines=drawn))
    assert record.status == "ok", record.reason
    registry = build_registry(folder / "bags", world.slides)
    bag = registry.slides[SLIDE].bags[0].load()
    return create_app(registry), bag.boxes(1).tolist()


def test_outlines_drawn_by_hand_are_not_replaced_by_a_segmentation(world: World, tmp_path: Path) -> None:
    app, boxes = outlined(world, tmp_path)
    found = get(app, f"/api/slides/{SLIDE}/tissue").json()
    assert found["of"] == "tiles"
    inside = np.zeros((1024, 1536), bool)
    for x, y, width, height in boxes:
        inside[y : y + height, x : x + width] = True
    corners = {tuple(corner) for ring in found["rings"] for corner in ring}
    for x, y in corners:  # every corner of the outline is a corner of the tiles' union
        around = inside[max(0, y - 1) : y + 1, max(0, x - 1) : x + 1]
        assert around.any()
    assert max(x for x, _ in corners) <= 768
    area = sum(_area(ring) for ring in found["rings"])
    assert abs(area) == int(np.prod(np.array(boxes)[:, 2:], axis=1).sum())


def _area(ring: list[list[int]]) -> float:
    x, y = np.array(ring, float).T
    return float(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)) / 2)


def test_a_segmented_bag_shows_the_tissue_its_settings_find(world: World) -> None:
    app = create_app(build_registry(world.store.root, world.slides))
    found = get(app, f"/api/slides/{SLIDE}/tissue").json()
    assert found["of"] == "tissue"
    assert 0 < found["fraction"] < 1


def test_a_run_whose_bags_are_not_here_says_what_to_do(world: World, tmp_path: Path) -> None:
    three = ExtractSpec(pyramid=PyramidSpec(magnifications=(5, 10, 20), tile_px=64), encoders=("colour",))
    assert extract_slide(world.slides / "S0.tiff", three, tmp_path).status == "ok"
    registry = build_registry(world.run("marble"), world.slides, tmp_path)
    reply = get(create_app(registry), f"/api/slides/{key_of('slide', 'S0')}/runs/{next(iter(registry.runs))}/attention")
    assert reply.status == 422
    assert "the bag has 3 levels, the model was built for 2" in reply.json()["error"]
    assert "--store" in reply.json()["error"]


def test_which_part_of_a_run_a_slide_was_in(world: World) -> None:
    registry = build_registry(world.runs, world.slides, world.store.root)
    for run in registry.runs.values():
        parts = [run.part_of(registry.slides[key_of("slide", f"S{n}")]) for n in range(6)]
        assert parts == ["train", "train", "val", "val", "test", "test"]


def test_a_store_within_the_folder_of_runs_is_looked_at_once(world: World) -> None:
    registry = build_registry(world.root, world.slides, world.store.root)
    assert {len(slide.bags) for slide in registry.slides.values()} == {1}
