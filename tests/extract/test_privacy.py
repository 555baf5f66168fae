"""What a slide file says of its patient stays in the file: nothing of it in what a study writes, prints or serves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tifffile

from marble.slides.slide import Box, Slide
from marble.synthetic.slides import write_slide
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.cli.running import marble
from tests.extract.test_any_folder import SETTINGS
from tests.viewer.client import get

#: where a scanner or an archive leaves a name, each with a canary of its own
PLACES = (
    "description", "software", "artist", "host", "document", "xmp", "private tag", "label", "folder", "broken file",
)  # fmt: skip
TAGS = {"artist": 315, "host": 316, "document": 269, "private tag": 65001}
SLIDES = 12
EXPERIMENT = """
cohort = { path = "cohort.csv" }
bags = { store = "bags" }
task = "classification"
split = { scheme = "kfold", folds = 3, repeats = 1 }
train = { recipe = "common", epochs = 1, warmup = 0, orders = 1, val_orders = 1 }
models = [{ name = "marble", d_state = 8, label = "marble" }, { name = "abmil", hidden = 16, label = "abmil" }]
"""


def _canary(place: str) -> str:
    return f"Kanarienvogel{PLACES.index(place)}x"


@dataclass(frozen=True)
class Study:
    """Everything that left the slides: files by name, output and replies by what was asked for."""

    files: dict[str, bytes]
    said: dict[str, bytes]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Slides that name their patient wherever a file can, some of them broken, through a study from end to end."""
    root = tmp_path_factory.mktemp("study")
    folder = root / _canary("folder")
    folder.mkdir()
    for number in range(SLIDES):
        _write_named(folder / f"s{number:02}.tiff", root / "drawn.tiff", seed=number)
    (folder / "t1.svs").write_bytes(f"{_canary('broken file')} is no slide".encode())
    (folder / "t2.tiff").write_bytes((folder / "s00.tiff").read_bytes()[:3000])
    named = b"".join(path.read_bytes() for path in folder.iterdir())
    assert all(_canary(place).encode() in named for place in PLACES if place != "folder")
    labels = "".join(f"s{number:02},p{number:02},{'ab'[number % 2]}\n" for number in range(SLIDES))
    (root / "cohort.csv").write_text("slide_id,patient,label\n" + labels)
    (root / "study.toml").write_text(EXPERIMENT)

    said: dict[str, bytes] = {}

    def ask(code: int, *arguments: object) -> None:
        ended = marble(*arguments)
        assert ended.code == code, ended.output
        # a folder that was typed is named in answers; what lies in it is not
        said[str(arguments[0])] = ended.output.replace(str(folder), "FOLDER").encode()

    ask(1, "extract", folder, "--store", root / "bags", *SETTINGS)  # 1: two files are no slides
    ask(0, "tile", folder / "s00.tiff", "--out", root / "previews", "--magnifications", "5,20")
    ask(0, "run", root / "study.toml", "--out", root / "runs")
    ask(0, "report", root / "runs" / "study", "--out", root / "report")
    run = sorted((root / "runs" / "study" / "marble").iterdir())[0]
    ask(0, "predict", run, folder / "s01.tiff", "--out", root / "said.csv", "--allow-training-slides")
    ask(0, "heatmap", run, folder / "s02.tiff", "--store", root / "bags", "--out", root / "maps")
    ask(0, "verify", root / "runs")
    said |= _served(root, folder)
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and folder not in path.parents and path.name != "drawn.tiff"
    }
    return Study(files, said)


def _write_named(path: Path, drawn: Path, seed: int) -> None:
    """A slide with a canary in every place that a TIFF file has for one."""
    write_slide(drawn, (512, 384), mpp=0.5, pieces=1, quality=None, seed=seed)
    with Slide.open(drawn) as slide:
        pixels = slide.read(Box(0, 0, 512, 384), (512, 384)).pixels
    packet = f"<x:xmpmeta><dc:creator>{_canary('xmp')}</dc:creator></x:xmpmeta>".encode()
    tags = [(code, 2, 0, _canary(place), True) for place, code in TAGS.items()] + [(700, 1, len(packet), packet, True)]
    about = f"patient {_canary('description')} barcode={_canary('description')}"
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(
            pixels, tile=(256, 256), compression="zlib", photometric="rgb", metadata=None, description=about,
            resolution=(2e4, 2e4), resolutionunit="CENTIMETER", software=_canary("software"), extratags=tags,
        )  # fmt: skip
        label = np.full((64, 64, 3), 7, np.uint8)
        tiff.write(label, photometric="rgb", metadata=None, description=f"label {_canary('label')}", subfiletype=1)


def _served(root: Path, folder: Path) -> dict[str, bytes]:
    """Every kind of reply that the viewer gives about one slide, its run and its experiment, headers and all."""
    registry = build_registry(root / "runs", slides=folder, store=root / "bags")
    app = create_app(registry)
    slide, run = key_of("slide", "s03"), next(iter(registry.runs))
    (experiment,) = registry.experiments
    about = f"/api/slides/{slide}"
    asked = [
        "/", f"/slide/{slide}", f"/results/{experiment}", "/nothing-here", "/slide/0000000000000000",
        about, f"{about}/tissue", f"{about}/pixels/0/0/0", f"{about}/crops/0/0",
        f"{about}/runs/{run}", f"{about}/runs/{run}/attention", f"{about}/runs/{run}/attention/0/geojson",
    ]  # fmt: skip
    replies = {path: get(app, path) for path in asked}
    assert [path for path, reply in replies.items() if reply.status >= 400] == asked[3:5]
    return {path: json.dumps(reply.headers).encode() + reply.body for path, reply in replies.items()}


@pytest.mark.parametrize("place", PLACES)
def test_what_a_slide_says_of_its_patient_reaches_nothing(study: Study, place: str) -> None:
    canary = _canary(place)
    spellings: list[Callable[[str], bytes]] = [str.encode, lambda text: text.encode("utf-16-le")]
    everywhere = study.files | study.said
    found = [
        name for name, content in everywhere.items() if any(spell(canary) in content for spell in spellings)
    ] + [name for name in study.files if canary in name]  # fmt: skip
    assert not found


def test_the_search_looks_where_a_study_writes(study: Study) -> None:
    kinds = {Path(name).suffix for name in study.files}
    assert {".safetensors", ".json", ".csv", ".html", ".png"} <= kinds
    assert sum(name.startswith("bags") and name.endswith(".safetensors") for name in study.files) == SLIDES
    assert len(study.said) == 7 + 12
    assert any(b"s03" in content for content in study.said.values())
