"""Slides with names that mislead, through the command line: each is done or refused by name."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from marble import files
from marble.bags.store import BagStore
from marble.extract.slide import source_in
from marble.identifiers import printable, slide_id_of
from marble.synthetic.slides import write_slide
from tests.cli.running import marble
from tests.extract.test_any_folder import SETTINGS

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(900)]

#: of slides that have their folder to themselves but for the others of the list; on a disk that knows no cases of
#: letters, or keeps one form of an accent, fewer files come of them
NAMES = (
    "plain.tiff", "same.tiff", "same.tif", "UPPER.tiff", "upper.tiff",
    unicodedata.normalize("NFC", "é.tiff"), unicodedata.normalize("NFD", "é.tiff"),
    "new\nline.tiff", "tab\tbed.tiff", "-leading.tiff", "--store=elsewhere.tiff", "..tiff", "...tiff", ".hidden.tiff",
    "a" * 250 + ".tiff", "é" * 125 + ".tiff", "with space .tiff", "trailing..tiff", "quote'\".tiff",
    "$(touch pwned).tiff", "`touch pwned`;.tiff",
    "%2e%2e%2f.tiff", "CON.tiff", "=1+1.tiff", "\u202etxt.ffit.tiff", "back\\slash.tiff",
    "\x1b[31mred.tiff", "a*?[b].tiff",
)  # fmt: skip


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slide of its own for each name, a link to one of them, and one that leads out and back by `..`."""
    folder = tmp_path_factory.mktemp("names") / "slides"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        write_slide(folder / "drawn", (512, 384), mpp=0.5, seed=number, pieces=1)
        os.replace(folder / "drawn", folder / name)
    (folder / "link.tiff").symlink_to(folder / "plain.tiff")
    (folder / "up.tiff").symlink_to(Path("..") / "slides" / "plain.tiff")
    return folder


def test_every_name_is_done_or_refused_and_nothing_lies_elsewhere(
    slides: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = sorted(slides.iterdir())
    hashes = {path: files.sha256_file(path) for path in given}
    record_property("cases", len(given))
    ended = marble("extract", *given, "--store", tmp_path / "bags", *SETTINGS)
    (found,) = (tmp_path / "bags").iterdir()
    made = {record.slide_id: record for record in BagStore(found).records()}
    refused = [path for path in given if any(line.startswith(printable(path)) for line in ended.failed)]
    done = [path for path in given if slide_id_of(path) in made and path not in refused]
    assert sorted([*done, *refused]) == given, ended.output
    assert len(refused) == len(ended.failed)
    assert {path.name for path in refused} >= {"same.tif", "same.tiff"}
    assert len(done) >= 20
    for path in done:  # each bag is that of its own slide
        record = made[slide_id_of(path)]
        assert record.status == "ok", record.reason
        place = files.sha256_bytes(os.fsencode(os.path.realpath(path)))[:16]
        assert (source_in(record)["place"], source_in(record)["bytes"]) == (place, path.stat().st_size)
    assert len(made) == len(done)
    assert [path.name for path in tmp_path.iterdir()] == ["bags"]
    assert {path: files.sha256_file(path) for path in slides.iterdir()} == hashes
    assert ended.code == 1
    shown = [letter for letter in ended.output if not letter.isprintable() and letter != "\n"]
    assert shown == []
