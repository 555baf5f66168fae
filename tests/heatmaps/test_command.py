"""`marble heatmap --curves` and the pictures of cases in a report, as a user gets them."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from marble.cli.report import case_pictures
from marble.heatmaps import write
from marble.synthetic.slides import write_slide
from tests.cli.running import marble
from tests.viewer.world import World, make_world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("curves"), models=("abmil", "max"))


def test_curves_are_drawn_and_their_numbers_kept(made: World, tmp_path: Path) -> None:
    run, slide = made.run("abmil"), made.slides / "S5.tiff"
    words = ("--store", made.store.root, "--out", tmp_path, "--size", 128, "--top", 0)
    plain = marble("heatmap", run, slide, *words)
    assert plain.code == 0, plain.output
    assert "-curves.png" not in plain.output
    assert "faithfulness" not in json.loads((tmp_path / "S5-attention.json").read_text())
    done = marble("heatmap", run, slide, *words, "--curves")
    assert done.code == 0, done.output
    drawn = tmp_path / "S5-attention-curves.png"
    assert f"wrote {drawn}" in done.output
    colours = np.asarray(Image.open(drawn).convert("RGB")).reshape(-1, 3).astype(int)
    for colour in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):  # one line for either curve
        assert (np.abs(colours - colour).max(axis=1) < 8).sum() > 200
    kept = json.loads((tmp_path / "S5-attention.json").read_text())["faithfulness"]
    bag = made.store.load("S5")
    assert kept["level"] == len(bag.levels) - 1
    for share, score in (("removed", "deletion"), ("present", "insertion")):
        at, values = np.array(kept[share]), np.array(kept[score])
        assert len(at) == len(values) > 2
        assert (np.diff(at) > 0).all()
        height = float((np.diff(at) * (values[1:] + values[:-1]) / 2).sum() / (at[-1] - at[0]))
        assert kept[f"{score}_area"] == pytest.approx(height, abs=1e-9)
    # nothing removed and everything present are one and the same
    assert kept["removed"][0] == 0
    assert kept["present"][-1] == 1
    assert kept["deletion"][0] == pytest.approx(kept["insertion"][-1], abs=1e-6)


def test_maps_of_two_classes_do_not_replace_each_other(made: World, tmp_path: Path) -> None:
    words = ("--store", made.store.root, "--out", tmp_path, "--size", 64, "--mode", "gradient", "--level", 0)
    for target in ("none", "lesion"):
        done = marble("heatmap", made.run("abmil"), "S5", *words, "--target", target)
        assert done.code == 0, done.output
    kept = {target: json.loads((tmp_path / f"S5-gradient-{target}.json").read_text()) for target in ("none", "lesion")}
    assert {target: body["target"] for target, body in kept.items()} == {"none": "none", "lesion": "lesion"}
    long = [write._asked_for("a class whose name is as long as a sentence, and ends in " + end) for end in "xy"]
    assert long[0] != long[1]
    assert max(map(len, long)) <= 40


def test_a_slide_without_pixel_size_is_told_the_flag_that_the_command_has(made: World, tmp_path: Path) -> None:
    slide = tmp_path / "no-size.png"
    Image.new("RGB", (512, 512), "pink").save(slide)
    refused = marble("heatmap", made.run("abmil"), slide, "--out", tmp_path / "maps")
    assert refused.code == 2
    assert "--mpp where" in refused.output


def test_a_report_shows_a_small_heatmap_of_its_cases(made: World, tmp_path: Path) -> None:
    bare = marble("report", made.runs, "--out", tmp_path / "bare")
    assert bare.code == 0, bare.output
    given = ("--slides", made.slides, "--store", made.store.root)
    done = marble("report", made.runs, "--out", tmp_path / "full", *given)
    assert done.code == 0, done.output
    assert "no picture of" not in done.output
    before, after = (_case_pictures(tmp_path / name / "index.html") for name in ("bare", "full"))
    assert before == []
    assert after
    slides = marble("report", made.runs, "--out", tmp_path / "slides", "--slides", made.slides)
    assert slides.code == 0, slides.output
    tissue = _case_pictures(tmp_path / "slides" / "index.html")
    assert len(tissue) == len(after)
    for one, other in zip(after, tissue, strict=True):
        assert one.shape == other.shape
        assert np.abs(one.astype(int) - other.astype(int)).mean() > 1  # the map lies over the tissue


def _case_pictures(page: Path) -> list[np.ndarray]:
    """The pictures of cases in a page, which are no figures."""
    text = page.read_text()
    found = re.findall(r'<article class="case"><img [^>]*src="data:image/png;base64,([^"]+)"', text)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")) for data in found]


def test_of_two_files_of_one_name_neither_is_shown_as_the_slide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("marble.reports.cases.errors", lambda _: [SimpleNamespace(slide_ids=("S5",), job="0")])
    monkeypatch.setattr("marble.reports.cases.extremes", lambda _: [])
    for site in ("one", "other"):
        write_slide(tmp_path / site / "S5.tiff", (256, 256), mpp=1.0, pieces=1)
    assert case_pictures(None, tmp_path, None) == {}  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("slide id 'S5' is also that of ") == 2
    (tmp_path / "one" / "S5.tiff").unlink()
    assert list(case_pictures(None, tmp_path, None)) == [("0", "S5")]  # type: ignore[arg-type]
