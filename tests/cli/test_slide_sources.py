"""What the verbs that read slides say of their sources: folders without slides, tables with rows for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from marble.synthetic.slides import write_slide
from tests.cli.running import marble

SETTINGS = ("--magnifications", "5,20", "--tile-px", "64")


def words(verb: str, source: Path, out: Path) -> list[object]:
    place = {
        "tile": ("--out", out),
        "extract": ("--store", out, "--encoder", "colour"),
        "plan": ("--encoder", "colour"),
    }
    return [verb, source, *place[verb], *SETTINGS]


@pytest.mark.parametrize("verb", ["tile", "plan", "extract"])
def test_a_folder_without_slides_says_what_it_holds_and_what_is_read(verb: str, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    (folder / "below").mkdir(parents=True)
    for name in ("a.png", "b.PNG", "below/c.jpg", "notes.txt", ".hidden"):
        (folder / name).touch()
    ended = marble(*words(verb, folder, tmp_path / "out"))
    assert ended.code == 2
    (line,) = ended.output.splitlines()
    assert f"{folder}: no slides here, but 2 .png, 1 .jpg, 1 .txt. In folders the endings " in line
    assert ".svs, " in line
    assert line.endswith(f"pictures are taken only by name, as {folder / '*.jpg'}")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert "no slides here, and no other file" in marble(*words(verb, folder, tmp_path / "out")).output


def test_rows_of_pixel_sizes_that_belong_to_no_slide_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "slides"
    write_slide(folder / "a.tiff", (512, 384), mpp=0.5, pieces=1)
    write_slide(folder / "b.tiff", (512, 384), mpp=0.5, pieces=1)
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\na,0.5\nb.tiff,0.5\nB_1.svs,0.25\n" + "".join(f"x{n},0.25\n" for n in range(6)))
    for verb in ("tile", "plan", "extract"):
        ended = marble(*words(verb, folder, tmp_path / verb), "--mpp-csv", table)
        assert ended.code == 0, ended.output
        said = f"caution: {table}: no slide here for 7 of 9 rows: B_1.svs, x0, x1, x2, x3 and 2 more"
        assert ended.output.count(said) == 1
        table.write_text("wsi,mpp\na,0.5\nb.tiff,0.5\n")
        assert "caution" not in marble(*words(verb, folder, tmp_path / verb), "--mpp-csv", table).output
        table.write_text("wsi,mpp\na,0.5\nb.tiff,0.5\nB_1.svs,0.25\n" + "".join(f"x{n},0.25\n" for n in range(6)))


def test_shares_have_one_unit_and_sizes_the_unit_that_fits(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "a.tiff", (512, 384), mpp=0.5, pieces=1)
    told = marble(*words("tile", slide, tmp_path / "out")).output
    (row,) = [line for line in told.splitlines() if "a.tiff" in line and "[1/1]" not in line]
    assert row.count("%") == 2
    said = marble(*words("plan", slide, tmp_path / "out")).output
    assert "KiB; time" in said
    assert "0.00 GiB" not in said


@pytest.mark.parametrize("verb", ["tile", "plan", "extract"])
def test_what_is_called_like_a_slide_and_is_none_is_said_in_the_same_words(verb: str, tmp_path: Path) -> None:
    folder = tmp_path / "slides"
    write_slide(folder / "whole.tiff", (512, 384), mpp=0.5, pieces=1)
    (folder / "link.svs").symlink_to("nowhere.svs")
    (folder / "folder.svs").mkdir()
    ended = marble(*words(verb, folder, tmp_path / "out"))
    lines = [line for line in ended.output.splitlines() if line.startswith(("failed: ", "will not give a bag: "))]
    assert [line.partition(": ")[2] for line in lines] == [
        f"{folder}/folder.svs: a folder, not a slide. Give the slide's own file",
        f"{folder}/link.svs: a link to a file that is not there. Copy the slide itself",
    ]


def test_two_slides_of_one_name_have_previews_and_outlines_of_their_own(tmp_path: Path) -> None:
    folder, out = tmp_path / "slides", tmp_path / "out"
    for site in ("one", "other"):
        write_slide(folder / site / "a.tiff", (512, 384), mpp=0.5, pieces=1)
    clash = marble(*words("tile", folder, out))
    assert clash.code == 1
    assert clash.output.count("slide id 'a' is also that of ") == 2
    assert not list(out.glob("*"))
    by_path = *words("tile", folder, out), "--id-from", "path"
    assert marble(*by_path).code == 0
    drawn = out / "slides__other__a.geojson"
    assert sorted(out.glob("*.geojson")) == [out / "slides__one__a.geojson", drawn]
    drawn.write_text('{"type": "FeatureCollection", "features": []}')  # nothing of it is wanted
    again = marble(*by_path, "--outlines", out)
    assert again.code == 1
    assert "no tile has enough tissue" in again.output
    assert f"{folder / 'other' / 'a.tiff'}" in again.output
    assert f"{folder / 'one' / 'a.tiff'}" not in again.output
