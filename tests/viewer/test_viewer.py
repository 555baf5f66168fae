"""What the viewer serves: tiles as they are in the file, the one prediction, caches and queues with limits."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import typer
from starlette.types import ASGIApp
from typer.testing import CliRunner

from marble.attribution import explain
from marble.bags.store import BagStore
from marble.cli import assemble
from marble.errors import InputError
from marble.heatmaps.write import write_heatmaps
from marble.prediction import Predictor
from marble.slides.slide import Box, Slide
from marble.viewer.app import create_app
from marble.viewer.cache import ByteCache
from marble.viewer.gate import Busy, Gate
from marble.viewer.pages import Pages
from marble.viewer.registry import Registry, build_registry, key_of
from marble.viewer.tiles import TILE_PX, tile_box, top_zoom
from tests.viewer.client import get, send
from tests.viewer.world import World, make_survival_world


@pytest.fixture(scope="module")
def registry(world: World) -> Registry:
    return build_registry(world.runs, world.slides, world.store.root)


@pytest.fixture(scope="module")
def app(registry: Registry) -> ASGIApp:
    return create_app(registry)


def slide_key(name: str = "S1") -> str:
    return key_of("slide", name)


def commands() -> typer.Typer:
    return assemble()


def test_the_list_marks_slides_without_a_stored_prediction(registry: Registry) -> None:
    """Classifiers store none of what they learned from; the row has its case and says why there is nothing else."""
    rows = re.findall(r"<tr data-key=.*?</tr>", Pages(registry, has_library=True).cases, re.DOTALL)
    marks = [re.findall(r'<span class="part">(.*?)</span>', row) for row in rows]
    assert marks == [["in training"] * 3] * 2 + [["validation"] * 3] * 2 + [[]] * 2
    assert all(f"<td>P{n}</td>" in row for n, row in enumerate(rows))


def test_the_commands(world: World, tmp_path: Path) -> None:
    run, store = str(world.run("marble")), str(world.root / "bags")
    done = CliRunner().invoke(
        commands(), ["heatmap", run, "S1", "--store", store, "--out", str(tmp_path), "--level", "0"]
    )
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "S1-attention-level0.geojson", "S1-attention-level0.png", "S1-attention.json"
    ]  # fmt: skip
    wrong = CliRunner().invoke(commands(), ["heatmap", run, "S1", "--store", store, "--level", "7"])
    assert "no map of level 7" in str(wrong.exception)
    refused = CliRunner().invoke(commands(), ["view", str(world.runs), "--host", "0.0.0.0"])
    assert "needs TLS" in str(refused.exception)


def test_the_prediction_is_bitwise_the_same_everywhere(
    world: World, registry: Registry, app: ASGIApp, tmp_path: Path
) -> None:
    for name in ("marble", "abmil"):
        run = next(entry for entry in registry.runs.values() if entry.model == name)
        here = Predictor(run.folder).answer(world.store.load("S1"))
        seen = get(app, f"/api/slides/{slide_key()}/runs/{run.key}").json()
        drawn = write_heatmaps(Predictor(run.folder), world.store.load("S1"), world.slides / "S1.tiff", tmp_path)
        told = json.loads(drawn.files[-1].read_text())["prediction"]
        table = tmp_path / f"{name}.csv"
        arguments = ["predict", str(run.folder), str(world.slides / "S1.tiff"), "--out", str(table)]
        arguments += ["--allow-training-slides"]
        assert CliRunner().invoke(commands(), arguments).exit_code == 0
        row = next(csv.DictReader(table.open()))
        for column, value in here.readout.items():
            assert seen["readout"][column] == value == told[column] == float(row[column])
        assert seen["order_sd"] == here.prediction.order_sd == float(row["order_sd"])
        assert seen["label"] == here.label == row["predicted"]
        assert seen["sentence"] == drawn.sentence


def test_tiles_are_the_slides_pixels(world: World, app: ASGIApp) -> None:
    lattice = get(app, f"/api/slides/{slide_key()}").json()
    with Slide.open(world.slides / "S1.tiff") as slide:
        assert (lattice["width"], lattice["height"]) == slide.l0_size_px
        top = top_zoom(slide.l0_size_px)
        assert lattice["top_zoom"] == top
        for zoom, column, row in ((top, 2, 1), (top, 5, 3), (top - 2, 1, 0), (0, 0, 0)):
            reply = get(app, f"/api/slides/{slide_key()}/pixels/{zoom}/{column}/{row}")
            tile = cv2.imdecode(np.frombuffer(reply.body, np.uint8), cv2.IMREAD_COLOR)
            assert tile is not None
            scale = 2 ** (top - zoom)
            x, y = column * TILE_PX * scale, row * TILE_PX * scale
            width, height = (min(TILE_PX * scale, side - at) for side, at in zip(slide.l0_size_px, (x, y), strict=True))
            out = -(-width // scale), -(-height // scale)
            expected = slide.read(Box(x, y, width, height), out).pixels
            assert tile.shape == expected.shape
            assert np.abs(tile[:, :, ::-1].astype(int) - expected).mean() < 6  # JPEG


def test_tiles_cover_the_slide_once_and_never_more_than_it_holds() -> None:
    size = (1000, 700)
    for zoom in range(top_zoom(size) + 1):
        seen = np.zeros(size[::-1], int)
        for row in range(8):
            for column in range(8):
                found = tile_box(size, zoom, column, row)
                if found is not None:
                    box, out = found
                    assert out[0] <= box.width
                    assert out[1] <= box.height
                    seen[box.y : box.y + box.height, box.x : box.x + box.width] += 1
        assert (seen == 1).all()
    assert tile_box(size, top_zoom(size) + 1, 0, 0) is None
    assert tile_box(size, -1, 0, 0) is None


def test_numbers_out_of_range_are_not_there(app: ASGIApp) -> None:
    for place in ("99/0/0", "0/1/0", "0/0/1", "11/9999999/0", "11/0/10000000000", "-1/0/0", "x/0/0"):
        assert get(app, f"/api/slides/{slide_key()}/pixels/{place}").status == 404
    for place in ("2/0", "0/99999", "9/9"):
        assert get(app, f"/api/slides/{slide_key()}/crops/{place}").status == 404


def test_a_known_tile_is_not_sent_again(app: ASGIApp) -> None:
    path = f"/api/slides/{slide_key()}/pixels/11/1/1"
    first = get(app, path)
    assert first.status == 200
    again = get(app, path, {"if-none-match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    other = get(app, f"/api/slides/{slide_key()}/pixels/11/2/1")
    assert other.headers["etag"] != first.headers["etag"]


def test_the_etag_is_the_hash_of_what_is_sent(app: ASGIApp, registry: Registry) -> None:
    run = next(iter(registry.runs))
    for path in (f"/api/slides/{slide_key()}/pixels/11/1/1", f"/api/slides/{slide_key()}/crops/1/0", "/",
                 f"/api/slides/{slide_key()}/runs/{run}/attention"):  # fmt: skip
        reply = get(app, path)
        assert reply.headers["etag"] == f'"{hashlib.sha256(reply.body).hexdigest()[:32]}"'


def test_a_write_in_place_that_keeps_size_and_time_is_seen(world: World, tmp_path: Path) -> None:
    file = tmp_path / "S1.tiff"
    shutil.copy(world.slides / "S1.tiff", file)
    app = create_app(build_registry(world.store.root, tmp_path))
    path = f"/api/slides/{slide_key()}/pixels/11/1/1"
    assert get(app, path).status == 200
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(before.st_size // 2)
        opened.write(b"\0" * 64)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert get(app, path).status == 409


def test_a_slide_that_changes_or_goes_is_not_mixed(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "slides"
    folder.mkdir()
    file = folder / "S1.tiff"
    shutil.copy(world.slides / "S1.tiff", file)
    app = create_app(build_registry(world.store.root, folder))
    path = f"/api/slides/{slide_key()}/pixels/11/1/1"
    assert get(app, path).status == 200
    shutil.copy(world.slides / "S3.tiff", file)
    assert get(app, path).status == 409
    file.unlink()
    reply = get(app, path)
    assert reply.status == 404
    assert str(tmp_path).encode() not in reply.body


def test_another_file_under_the_same_name_is_refused(world: World, tmp_path: Path) -> None:
    from marble.synthetic.slides import write_slide

    write_slide(tmp_path / "S1.tiff", (800, 600), seed=3)
    app = create_app(build_registry(world.store.root, tmp_path))
    assert get(app, f"/api/slides/{slide_key()}/pixels/11/1/1").status == 409


def test_without_slides_the_lattice_is_shown_on_a_blank(world: World) -> None:
    app = create_app(build_registry(world.store.root))
    lattice = get(app, f"/api/slides/{slide_key()}").json()
    assert not lattice["has_picture"]
    tile = get(app, f"/api/slides/{slide_key()}/pixels/11/0/0")
    pixels = cv2.imdecode(np.frombuffer(tile.body, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    assert pixels.shape == (TILE_PX, TILE_PX, 3)
    assert np.ptp(pixels) <= 2
    assert get(app, f"/api/slides/{slide_key()}/tissue").status == 404


def test_the_list_shows_labels_predictions_and_errors(app: ASGIApp, registry: Registry) -> None:
    text = get(app, "/").body.decode()
    for entry in registry.slides.values():
        assert f"/slide/{entry.key}" in text
    wrong = {slide for run in registry.runs.values() for slide, said in run.stored.items() if said.wrong}
    assert text.count('data-wrong="1"') == len(wrong)
    assert "<td>P5</td>" in text


def test_maps_of_every_mode_have_a_value_for_every_tile(app: ASGIApp, registry: Registry) -> None:
    lattice = get(app, f"/api/slides/{slide_key()}").json()
    run = next(entry.key for entry in registry.runs.values() if entry.model == "marble")
    for mode, levels in (("attention", [0, 1]), ("gradient", [0, 1]), ("occlusion", [0])):
        body = get(app, f"/api/slides/{slide_key()}/runs/{run}/{mode}").json()
        assert [one["level"] for one in body["maps"]] == levels
        for one in body["maps"]:
            assert len(one["values"]) * 2 == len(lattice["levels"][one["level"]]["cells"])
    other = get(app, f"/api/slides/{slide_key()}/runs/{run}/gradient", query="target=none").json()
    assert other["target"] == "none"


def test_the_words_of_a_map_say_unit_and_sign(app: ASGIApp, registry: Registry) -> None:
    run = next(entry.key for entry in registry.runs.values() if entry.model == "marble")
    words = {mode: get(app, f"/api/slides/{slide_key()}/runs/{run}/{mode}", query="target=lesion").json()["meaning"]
             for mode in ("attention", "gradient", "occlusion")}  # fmt: skip
    assert words["attention"]["unit"] == "share of 1"
    for mode in ("gradient", "occlusion"):
        assert words[mode]["unit"] == "logit of lesion"
        assert (words[mode]["low"], words[mode]["high"]) == ("against lesion", "for lesion")
    assert "falls when a tile goes" in words["occlusion"]["text"]


def test_the_exported_map_is_what_the_command_writes(
    world: World, app: ASGIApp, registry: Registry, tmp_path: Path
) -> None:
    run = next(entry for entry in registry.runs.values() if entry.model == "marble")
    write_heatmaps(Predictor(run.folder), world.store.load("S1"), None, tmp_path)
    for level in (0, 1):
        reply = get(app, f"/api/slides/{slide_key()}/runs/{run.key}/attention/{level}/geojson")
        assert reply.headers["content-type"] == "application/geo+json"
        assert reply.body == (tmp_path / f"S1-attention-level{level}.geojson").read_bytes()
    for path in ("attention/2/geojson", "attention/-1/geojson", "nothing/0/geojson"):
        assert get(app, f"/api/slides/{slide_key()}/runs/{run.key}/{path}").status == 404


def test_progress_counts_the_tiles_of_an_occlusion(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from marble.viewer import insight
    from marble.viewer.insight import Insight
    from marble.viewer.tiles import Pictures

    slide = registry.slides[slide_key()]
    run = next(entry for entry in registry.runs.values() if entry.model == "abmil")
    mind = Insight(registry, Pictures())
    seen: list[tuple[int, int] | None] = []

    def watched(*arguments: Any, on_tile: Callable[[int, int], object], **options: Any) -> Any:
        def look(done: int, total: int) -> None:
            on_tile(done, total)
            seen.append(mind.progress(slide, run, "occlusion", None))

        return explain(*arguments, on_tile=look, **options)

    monkeypatch.setattr(insight, "explain", watched)
    assert mind.progress(slide, run, "occlusion", None) is None
    tiles = len(json.loads(mind.maps(slide, run, "occlusion", None))["maps"][0]["values"])
    assert seen == [(n + 1, tiles) for n in range(tiles)]
    assert mind.progress(slide, run, "occlusion", None) is None
    reply = get(create_app(registry), f"/api/slides/{slide.key}/runs/{run.key}/occlusion/progress")
    assert reply.json() == {"working": False, "done": 0, "total": 0}


def test_a_class_that_is_not_there_is_refused_in_every_mode(world: World, tmp_path: Path) -> None:
    for mode in ("attention", "gradient", "occlusion"):
        asked = ["heatmap", str(world.run("marble")), "S1", "--store", str(world.root / "bags"), "--mode", mode,
                 "--target", "tumor", "--out", str(tmp_path)]  # fmt: skip
        done = CliRunner().invoke(commands(), asked)
        assert done.exit_code != 0
        assert "tumor" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_survival_and_bags_without_a_place_are_shown_too(tmp_path: Path) -> None:
    made = make_survival_world(tmp_path)
    registry = build_registry(tmp_path)
    app = create_app(registry)
    slide = registry.slides[key_of("slide", "P0009-S0")]
    run = next(iter(registry.runs.values()))
    here = Predictor(made.run("mean")).answer(made.store.load("P0009-S0"))
    seen = get(app, f"/api/slides/{slide.key}/runs/{run.key}").json()
    assert seen["readout"] == here.readout
    assert seen["label"] is None
    assert [tuple(point) for point in seen["curve"]] == list(here.curve.items())
    assert len(seen["curve"]) == 3
    lattice = get(app, f"/api/slides/{slide.key}").json()
    assert not lattice["placed"]
    assert [level["extent"] for level in lattice["levels"]] == [1024, 256]
    for mode in ("attention", "gradient", "occlusion"):
        assert get(app, f"/api/slides/{slide.key}/runs/{run.key}/{mode}").status == 200
    assert get(app, f"/results/{run.experiment}").status == 200
    assert slide.truth.endswith(("event", "censored"))
    assert slide.truth in get(app, "/").body.decode()


def test_a_folder_with_nothing_to_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither"):
        build_registry(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        build_registry(tmp_path / "x")


def test_the_cache_holds_no_more_than_it_may() -> None:
    cache = ByteCache(100)
    for i in range(30):
        cache.put(i, bytes(30))
        assert cache.held_bytes <= 100
        cache.get(0)  # what is used stays
    assert cache.get(0) is not None
    assert cache.get(28) is not None
    assert cache.get(5) is None
    cache.put("large", bytes(101))
    assert cache.get("large") is None
    cache.put(0, bytes(10))
    assert cache.held_bytes <= 100


def test_a_full_queue_says_so_at_once_and_recovers() -> None:
    async def scene() -> tuple[int, int, str]:
        gate, release = Gate(workers=2, queue=3), threading.Event()

        def work() -> str:
            release.wait(240)
            return "done"

        waiting = [asyncio.create_task(gate.run(work)) for _ in range(5)]
        await asyncio.sleep(0.05)
        turned_away = 0
        for _ in range(4):
            with pytest.raises(Busy):
                await gate.run(work)
            turned_away += 1
        release.set()
        done = [await task for task in waiting]
        return turned_away, len(done), await gate.run(work)

    assert asyncio.run(scene()) == (4, 5, "done")


def test_overload_is_answered_503_and_is_over_when_it_is_over(registry: Registry) -> None:
    app = create_app(registry, workers=1, queue=2)

    async def scene() -> list[int]:
        paths = [f"/api/slides/{slide_key(f'S{n % 6}')}/pixels/11/{n % 5}/{n % 3}" for n in range(60)]
        replies = await asyncio.gather(*(send(app, path) for path in paths))
        for reply in replies:
            if reply.status == 503:
                assert int(reply.headers["retry-after"]) > 0
        after = await send(app, paths[0])
        return [*(reply.status for reply in replies), after.status]

    *during, after = asyncio.run(scene())
    assert set(during) == {200, 503}
    assert during.count(200) >= 3
    assert after == 200


def test_health_answers_whatever_the_queue(registry: Registry) -> None:
    assert get(create_app(registry, workers=1, queue=-1), "/healthz").status == 200
    assert get(create_app(registry, workers=1, queue=-1), "/").status == 503


def test_what_is_damaged_is_left_out_by_name_and_the_rest_is_shown(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.runs, tmp_path / "runs")
    shutil.copytree(world.store.root, tmp_path / "bags")
    broken = BagStore(tmp_path / "bags").record_path("S0")
    broken.write_text("{")
    run = tmp_path / "runs" / "max" / "0" / "run.json"
    run.write_text(run.read_text().replace("none", "nine"))
    found = build_registry(tmp_path / "runs", world.slides, tmp_path / "bags")
    assert len(found.runs) == 2
    assert len(found.left_out) == 2
    assert all(any(str(path) in line for line in found.left_out) for path in (broken, run.parent))
    app = create_app(found)
    for name, status in (("S0", 404), ("S1", 200)):
        assert get(app, f"/api/slides/{slide_key(name)}").status == status
