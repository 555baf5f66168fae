"""What a slide file says of its patient stays in the file: nothing of it in what a study writes, prints or serves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.cli.running import marble
from tests.extract.named_slides import (
    DICOM_PLACES,
    PLACES,
    canary,
    name_dicom,
    write_jpeg,
    write_png,
    write_svs,
    write_tiff,
)
from tests.extract.test_any_folder import SETTINGS
from tests.viewer.client import get

SLIDES = 16
LINKED = 15  # lies elsewhere, under its patient's name
#: those that are not TIFF files like the others; pictures are taken by name, and their pixel size from a table
FORMATS: dict[int, tuple[str, Callable[[Path, int], None]]] = {
    11: ("svs", write_svs),
    12: ("svs", write_svs),
    13: ("png", write_png),
    14: ("jpg", write_jpeg),
}
EXPERIMENT = """
cohort = { path = "cohort.csv" }
bags = { store = "bags" }
task = "classification"
split = { scheme = "kfold", folds = 3, repeats = 1 }
train = { recipe = "common", epochs = 1, warmup = 0, orders = 1, val_orders = 1 }
models = [{ name = "marble", d_state = 8, label = "marble" }, { name = "abmil", hidden = 16, label = "abmil" }]
"""


@dataclass(frozen=True)
class Study:
    """Everything that left the slides: files by name, output and replies by what was asked for."""

    files: dict[str, bytes]
    said: dict[str, bytes]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Slides that name their patient wherever a file can, some of them broken, through a study from end to end."""
    root = tmp_path_factory.mktemp("study")
    folder = root / canary("folder")
    folder.mkdir()
    for number in range(SLIDES):
        ending, write = FORMATS.get(number, ("tiff", write_tiff))
        write(folder / f"s{number:02}.{ending}", number)
    originals = root / "originals"
    originals.mkdir()
    linked = folder / f"s{LINKED}.tiff"
    linked.symlink_to(linked.rename(originals / f"{canary('file behind a link')}.tiff"))
    (folder / "t1.svs").write_bytes(f"{canary('broken file')} is no slide".encode())
    (folder / "t2.tiff").write_bytes((folder / "s00.tiff").read_bytes()[:3000])
    named = b"".join(path.read_bytes() for path in folder.iterdir())
    assert all(canary(place).encode() in named for place in PLACES if place not in ("folder", "file behind a link"))
    labels = "".join(f"s{number:02},p{number:02},{'ab'[number % 2]}\n" for number in range(SLIDES))
    (root / "cohort.csv").write_text("slide_id,patient,label\n" + labels)
    (root / "study.toml").write_text(EXPERIMENT)

    said: dict[str, bytes] = {}

    def ask(code: int, *arguments: object) -> None:
        ended = marble(*arguments)
        assert ended.code == code, ended.output
        # a folder that was typed is named in answers; what lies in it is not
        said[str(arguments[0])] = ended.output.replace(str(folder), "FOLDER").encode()

    pictures = [folder / "s13.png", folder / "s14.jpg"]
    (root / "sizes.csv").write_text("wsi,mpp\n" + "".join(f"{path.name},0.5\n" for path in pictures))
    sizes = ("--mpp-csv", root / "sizes.csv")
    ask(1, "extract", folder, *pictures, "--store", root / "bags", *sizes, *SETTINGS)  # 1: two files are no slides
    ask(0, "tile", folder / "s00.tiff", "--out", root / "previews", "--magnifications", "5,20")
    ask(0, "run", root / "study.toml", "--out", root / "runs")
    ask(0, "report", root / "runs" / "study", "--out", root / "report")
    run = sorted((root / "runs" / "study" / "marble").iterdir())[0]
    ask(0, "predict", run, folder / f"s{LINKED}.tiff", "--out", root / "said.csv", "--allow-training-slides")
    ask(0, "heatmap", run, folder / "s02.tiff", "--store", root / "bags", "--out", root / "maps")
    ask(0, "verify", root / "runs")
    said |= _served(root, folder)
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not {folder, originals} & {*path.parents}
    }
    return Study(files, said)


def _served(root: Path, folder: Path) -> dict[str, bytes]:
    """Every kind of reply that the viewer gives about one slide, its run and its experiment, headers and all."""
    registry = build_registry(root / "runs", slides=folder, store=root / "bags")
    app = create_app(registry)
    slide, run = key_of("slide", f"s{LINKED}"), next(iter(registry.runs))
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
    found = found_in(canary(place), study.files | study.said)
    assert not found


@pytest.mark.parametrize("name", ["camelyon_jpeg.dcm", "wsi2dcm_jpeg.dcm"])
def test_what_a_dicom_slide_says_of_its_patient_reaches_nothing(shared_data: Path, tmp_path: Path, name: str) -> None:
    named = name_dicom((shared_data / "slides" / name).read_bytes())
    (tmp_path / "slides").mkdir()
    path = tmp_path / "slides" / "s.dcm"
    path.write_bytes(named)
    (tmp_path / "sizes.csv").write_text("wsi,mpp\ns.dcm,0.5\n")
    options = ("--mpp-csv", tmp_path / "sizes.csv", *SETTINGS)
    said = marble("extract", path, "--store", tmp_path / "bags", *options)
    assert said.code == 0, said.output
    assert marble("tile", path, "--out", tmp_path / "previews", "--magnifications", "5,20").code in (0, 1)
    written = {one.name: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file() and one != path}
    assert any(file.endswith(".safetensors") for file in written)
    for place in DICOM_PLACES:
        assert canary(place)[-16:].encode() in named
        assert not found_in(canary(place)[-16:], written | {"said": said.output.encode()})


def found_in(name: str, everywhere: dict[str, bytes]) -> list[str]:
    """Where a name stands: in what was written and said, or in what it is called."""
    spellings: list[Callable[[str], bytes]] = [str.encode, lambda text: text.encode("utf-16-le")]
    return [
        file
        for file, content in everywhere.items()
        if name in file or any(spell(name) in content for spell in spellings)
    ]


def test_the_search_looks_where_a_study_writes(study: Study) -> None:
    kinds = {Path(name).suffix for name in study.files}
    assert {".safetensors", ".json", ".csv", ".html", ".png"} <= kinds
    assert sum(name.startswith("bags") and name.endswith(".safetensors") for name in study.files) == SLIDES
    assert len(study.said) == 7 + 12
    assert any(b"s15" in content for content in study.said.values())
