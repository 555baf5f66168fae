"""A study of slides that go by pseudonyms: not a byte of it, but of the table, says what their files are called."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from marble.files import sha256_file
from marble.pseudonyms import Pseudonyms
from marble.viewer.app import create_app
from marble.viewer.registry import Registry, build_registry, key_of
from tests.cli.running import marble
from tests.extract.named_slides import PLACES, canary, write_svs, write_tiff
from tests.extract.test_any_folder import SETTINGS
from tests.extract.test_privacy import found_in
from tests.viewer.client import get

SLIDES = 12
#: names that lie in no file, but on it and around it
NAMES = {
    "file": "Amselmann_Anna",
    "file behind the link": "Drosselbart",
    "folder": "Finkenwerder",
    "folder of the link": "Kleiberstadt",
    "broken file": "Zeisigheim Emil",
    "truncated file": "Stieglitzer",
    "dangling link": "Pirolsen",
    "file not in the manifest": "Wiedehopfner",
    "row of a table": "Kuckucksen",
    "file that is not there": "Rohrdommler",
    "renamed file": "Eisvogelsang",
}
INSIDE = ("description", "software", "artist", "host", "document", "xmp", "private tag", "label", "aperio", "macro")
EXPERIMENT = """
cohort = { path = "cohort.csv", pseudonyms = "map.csv" }
bags = { store = "bags" }
task = "classification"
split = { scheme = "kfold", folds = 3, repeats = 1, allow_leaks = true }  # drawn this small, some slides are equal
train = { recipe = "common", epochs = 1, warmup = 0, orders = 1, val_orders = 1 }
models = [{ name = "abmil", hidden = 16, label = "abmil" }]
baselines = []
"""


@dataclass(frozen=True)
class Study:
    """What a study left behind: files by name, output and replies by what was asked for."""

    root: Path
    files: dict[str, bytes]
    said: dict[str, bytes]
    ids: dict[str, str]  # by the name of the file
    codes: dict[str, int]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    root = tmp_path_factory.mktemp("study")
    folder, elsewhere = root / NAMES["folder"], root / NAMES["folder of the link"]
    folder.mkdir()
    elsewhere.mkdir()
    slides = [folder / f"{NAMES['file']}_{number:02}.{'svs' if number < 2 else 'tiff'}" for number in range(SLIDES)]
    for number, path in enumerate(slides):
        (write_svs if number < 2 else write_tiff)(path, number)
    slides[2].symlink_to(slides[2].rename(elsewhere / f"{NAMES['file behind the link']}.tiff"))
    (folder / f"{NAMES['broken file']}.svs").write_bytes(b"no slide")
    (folder / f"{NAMES['truncated file']}.tiff").write_bytes(slides[3].read_bytes()[:3000])
    (folder / f"{NAMES['dangling link']}.tiff").symlink_to(elsewhere / "gone.tiff")
    listed = "".join(f"{sha256_file(path)}  {path.name}\n" for path in folder.iterdir() if path.is_file())
    (root / "hashes.txt").write_text(listed)
    (folder / f"{NAMES['file not in the manifest']}.tiff").write_bytes(slides[4].read_bytes()[:-1])
    (root / "sizes.csv").write_text(f"wsi,mpp\n{NAMES['row of a table']}.svs,0.5\n{slides[5].name},0.5\n")
    labels = [f"{path.name},p{number:02},{'ab'[number % 2]}\n" for number, path in enumerate(slides)]
    labels.append(f"{NAMES['row of a table']}.svs,p99,a\n")
    (root / "cohort.csv").write_text("slide_id,patient,label\n" + "".join(labels))
    (root / "study.toml").write_text(EXPERIMENT)

    said: dict[str, bytes] = {}
    codes: dict[str, int] = {}
    table = ("--pseudonyms", root / "map.csv")

    def ask(what: str, *arguments: object) -> None:
        ended = marble(*arguments, *table) if arguments[0] not in ("run", "report", "verify") else marble(*arguments)
        said[what], codes[what] = ended.output.encode(), ended.code

    options = ("--mpp-csv", root / "sizes.csv", "--manifest", root / "hashes.txt", *SETTINGS)
    ask("extract", "extract", folder, "--store", root / "bags", *options)
    slides[6] = slides[6].rename(folder / f"{NAMES['renamed file']}.tiff")
    ask("extract again", "extract", folder, "--store", root / "bags", "--mpp-csv", root / "sizes.csv", *SETTINGS)
    ask("extract nothing", "extract", folder / NAMES["file that is not there"], "--store", root / "bags", *SETTINGS)
    ask("tile", "tile", slides[0], folder / f"{NAMES['broken file']}.svs", "--out", root / "previews",
        "--magnifications", "5,20")  # fmt: skip
    ask("split", "split", root / "cohort.csv", "--out", root / "splits")
    ask("run", "run", root / "study.toml", "--out", root / "runs")
    ask("report", "report", root / "runs" / "study", "--out", root / "report")
    assert codes["run"] == 0, said["run"].decode()
    run = sorted((root / "runs" / "study" / "abmil").iterdir())[0]
    bad = (folder / f"{NAMES['broken file']}.svs", folder / f"{NAMES['file that is not there']}.tiff")
    ask("predict", "predict", run, slides[2], *bad, "--out", root / "said.csv", "--allow-training-slides")
    ask("predict with workers", "predict", run, slides[2], *bad, "--workers", 2, "--allow-training-slides")
    known = Pseudonyms.read(root / "map.csv").ids_of(slides)
    ask("heatmap", "heatmap", run, slides[7], "--store", root / "bags", "--out", root / "maps")
    ask("heatmap by id", "heatmap", run, known[slides[8]], "--store", root / "bags", "--out", root / "maps")
    ask("heatmap of a broken file", "heatmap", run, bad[0], "--out", root / "maps")
    slides[9].write_bytes(b"no slide any more")
    ask("heatmap of a bag whose file broke", "heatmap", run, known[slides[9]], "--store", root / "bags",
        "--out", root / "maps")  # fmt: skip
    ask("verify", "verify", root / "runs")
    registry = build_registry(root / "runs", store=root / "bags", pseudonyms=root / "map.csv")
    for path in (slides[2], slides[9]):
        said |= _served(registry, known[path])
    own = {root / name for name in ("map.csv", "cohort.csv", "sizes.csv", "hashes.txt")}
    written = {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path not in own and not {folder, elsewhere} & {*path.parents}
    }
    return Study(root, written, said, {path.name: slide_id for path, slide_id in known.items()}, codes)


def _served(registry: Registry, slide_id: str) -> dict[str, bytes]:
    """Every kind of reply about one slide, headers and all."""
    app, run, about = create_app(registry), next(iter(registry.runs)), f"/api/slides/{key_of('slide', slide_id)}"
    asked = [
        "/", f"/slide/{key_of('slide', slide_id)}", about, f"{about}/tissue", f"{about}/pixels/0/0/0",
        f"{about}/crops/0/0", f"{about}/runs/{run}", f"{about}/runs/{run}/attention/0/geojson",
    ]  # fmt: skip
    replies = {path: get(app, path) for path in asked}
    return {path: json.dumps([one.status, one.headers]).encode() + one.body for path, one in replies.items()}


@pytest.mark.parametrize("what", NAMES)
def test_what_a_file_is_called_reaches_nothing(study: Study, what: str) -> None:
    assert not found_in(NAMES[what], study.files | study.said)


@pytest.mark.parametrize("place", INSIDE)
def test_what_a_file_holds_reaches_nothing(study: Study, place: str) -> None:
    assert not found_in(canary(place), study.files | study.said)


def test_the_search_looks_where_names_would_stand(study: Study) -> None:
    """The same commands with the table's ids: each is found where the file's name stands without pseudonyms."""
    one = study.ids[f"{NAMES['file']}_02.tiff"]
    for what in ("extract", "predict", "predict with workers"):
        assert one.encode() in study.said[what], what
    assert found_in(one, study.files)
    assert f"bags/{_fingerprint(study)}/{one}.safetensors" in study.files
    assert {Path(name).suffix for name in study.files} >= {".safetensors", ".json", ".csv", ".html", ".png", ".geojson"}
    assert set(PLACES) > set(INSIDE)


def _fingerprint(study: Study) -> str:
    return next(iter({Path(name).parts[1] for name in study.files if name.startswith("bags/")}))


def test_every_command_went_its_way(study: Study) -> None:
    assert study.codes == {
        "extract": 1, "extract again": 1, "extract nothing": 2, "tile": 1, "split": 0, "run": 0, "report": 0,
        "predict": 1, "predict with workers": 1, "heatmap": 0, "heatmap by id": 0, "heatmap of a broken file": 2,
        "heatmap of a bag whose file broke": 2, "verify": 0,
    }, {what: study.said[what].decode() for what in study.codes}  # fmt: skip
    failed = [line for line in study.said["extract"].decode().splitlines() if line.startswith("failed: slide-")]
    assert len(failed) == 4
    assert "is not in the manifest" in "".join(failed)


def test_the_table_is_its_owners_alone_and_knows_a_renamed_file(study: Study) -> None:
    table = study.root / "map.csv"
    assert table.stat().st_mode & 0o777 == 0o600
    rows = Pseudonyms.read(table).rows
    by_name = {Path(row.file).name: row.slide_id for row in rows}
    assert by_name[f"{NAMES['renamed file']}.tiff"] == by_name[f"{NAMES['file']}_06.tiff"]
    assert len(_of_ids(study.files)) == SLIDES
    assert all(one.encode() not in table.read_bytes() for one in _dates(study))


def _of_ids(files: Iterable[str]) -> set[str]:
    return {Path(name).stem for name in files if name.endswith(".safetensors") and name.startswith("bags/")}


def _dates(study: Study) -> list[str]:
    """The time stamps of the slide files: no record holds one."""
    stamps = [str(path.stat().st_mtime_ns) for path in (study.root / NAMES["folder"]).iterdir() if path.is_file()]
    assert not [one for one in stamps if found_in(one, study.files)]
    return stamps
