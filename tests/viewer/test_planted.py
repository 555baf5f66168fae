"""The lesion's tile is where the map peaks: in the picture, in the GeoJSON and in the viewer, at every level."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from marble.attribution.tile_map import FAINTEST
from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.extract import ExtractSpec, extract_slide
from marble.extract.slide import store_for
from marble.heatmaps.colours import colour_table
from marble.heatmaps.overlay import OPACITY
from marble.heatmaps.write import HeatmapSpec, write_heatmaps
from marble.identifiers import slide_id_of
from marble.prediction import Predictor
from marble.slides.lattice import PyramidSpec
from marble.slides.slide import Slide
from marble.synthetic.slides import Format, Planted, write_slide
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.viewer.client import get
from tests.viewer.seeing import bluest
from tests.viewer.world import World

FINE, COARSE = 128, 512  # level-0 pixels of a tile at 10x and 2.5x, 0.5 um per pixel
TILE_PX = 64


def spec_at(origin: tuple[int, int]) -> ExtractSpec:
    pyramid = PyramidSpec(magnifications=(2.5, 10), tile_px=TILE_PX, l0_origin_px=origin)
    return ExtractSpec(pyramid=pyramid, encoders=("colour",))


@pytest.mark.parametrize("layout", ["generic-tiff", "svs", "ome-tiff"])
@pytest.mark.parametrize("origin", [(0, 0), (37, 91), (128, 64)])
def test_a_planted_lesion_is_the_peak_everywhere(
    world: World, tmp_path: Path, origin: tuple[int, int], layout: Format
) -> None:
    cell = (4, 7)  # row, column
    lesion = (origin[0] + cell[1] * FINE, origin[1] + cell[0] * FINE, FINE, FINE)
    suffix = {"svs": "svs", "ome-tiff": "ome.tiff"}.get(layout, "tiff")
    path = write_slide(tmp_path / "slides" / f"planted.{suffix}", (2200, 1500), seed=5, format=layout,
                       planted=[Planted("mark", lesion)])  # fmt: skip
    record = extract_slide(path, spec_at(origin), tmp_path / "bags")
    assert record.status == "ok", record.reason
    parent = (origin[0] + 1 * COARSE, origin[1] + 1 * COARSE, COARSE, COARSE)
    check_everywhere(world, path, store_for(tmp_path / "bags", spec_at(origin)), [parent, lesion], tmp_path)


@pytest.mark.parametrize("name", ["atlas_lungSCC_crop2048_20x.tiff", "CMU-1-Small-Region.svs"])
@pytest.mark.parametrize("origin", [(0, 0), (37, 91), (128, 64)])
def test_the_peak_of_a_real_slide_is_where_its_pixels_say(
    world: World, shared_data: Path, tmp_path: Path, name: str, origin: tuple[int, int]
) -> None:
    source = shared_data / "slides" / name
    path = tmp_path / "slides" / name
    path.parent.mkdir()
    path.symlink_to(source)
    record = extract_slide(path, spec_at(origin), tmp_path / "bags")
    assert record.status == "ok", record.reason
    store = store_for(tmp_path / "bags", spec_at(origin))
    bag = store.load(path.stem)
    fine = bluest(path, bag.boxes(1), TILE_PX)
    assert bag.finest.parent is not None
    truth = [box_of(bag, 0, int(bag.finest.parent[fine])), box_of(bag, 1, fine)]
    check_everywhere(world, path, store, truth, tmp_path)


def check_everywhere(
    world: World, path: Path, store: BagStore, truth: list[tuple[int, int, int, int]], out: Path
) -> None:
    bag = store.load(slide_id_of(path))
    predictor = Predictor(world.run("max"))
    wish = HeatmapSpec(size=700, top=3)
    done = write_heatmaps(predictor, bag, path, out / "maps", wish)
    assert {file.suffix for file in done.files} == {".png", ".geojson", ".json"}
    registry = build_registry(world.runs, out / "slides", store.root)
    app = create_app(registry)
    slide, run = (
        key_of("slide", bag.slide_id),
        next(key for key, entry in registry.runs.items() if entry.model == "max"),
    )
    lattice = get(app, f"/api/slides/{slide}").json()
    maps = get(app, f"/api/slides/{slide}/runs/{run}/attention").json()
    for level, box in enumerate(truth):
        assert viewer_peak(lattice, maps, level) == box
        assert geojson_peak(out / "maps" / f"{bag.slide_id}-attention-level{level}.geojson") == box
        picture = out / "maps" / f"{bag.slide_id}-attention-level{level}.png"
        assert png_peak(picture, path, bag, level, wish.size) == box


def box_of(bag: Bag, level: int, index: int) -> tuple[int, int, int, int]:
    x, y, width, height = bag.boxes(level)[index].tolist()
    return x, y, width, height


def viewer_peak(lattice: dict[str, list[dict[str, list[int]]]], maps: dict[str, list[dict[str, list[float]]]],
                level: int) -> tuple[int, ...]:  # fmt: skip
    tiles = lattice["levels"][level]
    peak = int(np.argmax(maps["maps"][level]["values"]))
    row, column = tiles["cells"][2 * peak : 2 * peak + 2]
    extent = tiles["extent"]
    assert isinstance(extent, int)
    return tiles["origin"][0] + column * extent, tiles["origin"][1] + row * extent, extent, extent


def geojson_peak(path: Path) -> tuple[int, ...]:
    features = json.loads(path.read_text())["features"]
    best = max(features, key=lambda feature: feature["properties"]["measurements"]["attention"])
    assert best["properties"]["measurements"]["rank"] == 1
    corners = np.array(best["geometry"]["coordinates"][0])
    low, high = corners.min(axis=0), corners.max(axis=0)
    return (*low.tolist(), *(high - low).tolist())


def png_peak(picture: Path, slide: Path, bag: Bag, level: int, size: int) -> tuple[int, int, int, int]:
    """The tile in whose rectangle the picture's colours decode to the largest values."""
    whole = cv2.imread(str(picture))
    assert whole is not None
    with Slide.open(slide) as opened:
        below, l0_size = opened.thumbnail(size), opened.l0_size_px
    height, width = below.shape[:2]
    inner = find_inner(np.asarray(whole[:, :, ::-1], np.uint8), below)
    values = decoded(inner, below)
    means = []
    for x, y, w, h in bag.boxes(level).tolist():  # by the test's own arithmetic
        left, right = (int(np.ceil(v * width / l0_size[0])) for v in (x, x + w))
        top, bottom = (int(np.ceil(v * height / l0_size[1])) for v in (y, y + h))
        means.append(values[top + 1 : bottom - 1, left + 1 : right - 1].mean())
    return box_of(bag, level, int(np.argmax(means)))


def find_inner(whole: NDArray[np.uint8], below: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The slide's part of a framed picture: inside the thin grey rectangle around it."""
    height, width = below.shape[:2]
    line = (whole == (150, 156, 165)).all(axis=2)
    rows, columns = np.nonzero(line.sum(axis=1) >= width)[0], np.nonzero(line.sum(axis=0) >= height)[0]
    inner = whole[rows[0] + 1 : rows[0] + 1 + height, columns[0] + 1 : columns[0] + 1 + width]
    assert inner.shape == below.shape
    return inner


def decoded(inner: NDArray[np.uint8], below: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(h, w) step of the colour table that explains each pixel best; -1 where nothing was painted."""
    table = colour_table("viridis").astype(np.float32)
    best = np.abs(inner.astype(np.float32) - below).sum(axis=2)
    steps = np.full(best.shape, -1, np.int64)
    for step in range(0, 256, 3):
        alpha = OPACITY * (FAINTEST + (1 - FAINTEST) * step / 255)
        error = np.abs(inner - ((1 - alpha) * below + alpha * table[step])).sum(axis=2)
        better = error < best
        steps[better], best[better] = step, error[better]
    return steps


def test_a_bag_drawn_over_another_slide_is_refused(world: World, tmp_path: Path) -> None:
    other = write_slide(tmp_path / "S1.tiff", (1000, 900), seed=1)
    with pytest.raises(Exception, match="was made from one of"):
        write_heatmaps(Predictor(world.run("max")), world.store.load("S1"), other, tmp_path)


def test_every_mode_draws_and_a_slide_without_file_gets_a_blank(world: World, tmp_path: Path) -> None:
    predictor, bag = Predictor(world.run("max")), world.store.load("S1")
    for mode in ("attention", "occlusion", "gradient"):
        done = write_heatmaps(predictor, bag, None, tmp_path, HeatmapSpec(mode=mode, size=300, curves=True))
        numbers = json.loads(done.files[-1].read_text())
        assert numbers["faithfulness"]["deletion"][0] == pytest.approx(numbers["faithfulness"]["insertion"][-1])
