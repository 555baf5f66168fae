"""Slides of several files through `marble extract`: one changed part is seen, and another slide is another slide."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from marble import files
from marble.bags import BagStore
from marble.extract import find_slides
from marble.synthetic.slides import write_slide
from tests.cli.commands import Ended, marble
from tests.ground.test_slide_files import dicom


@pytest.fixture
def slide(tmp_path: Path) -> Path:
    """A TIFF that is called and laid out as a MIRAX slide is, so that it can be read here."""
    write_slide(tmp_path / "a.tiff", (1536, 1280), mpp=0.5, seed=1)
    path = tmp_path / "in" / "a.mrxs"
    (path.parent / "a").mkdir(parents=True)
    (tmp_path / "a.tiff").rename(path)
    (path.parent / "a" / "Data0000.dat").write_bytes(b"pixels of one")
    return path


def extract(path: Path, *words: object) -> Ended:
    store = path.parents[1] / "bags"
    return marble("extract", path, "--store", store, "--magnifications", "5,20", "--encoder", "colour", *words)


def bag(path: Path) -> Path:
    (found,) = (path.parents[1] / "bags").rglob("a.safetensors")
    return found


@pytest.mark.parametrize("words", [(), ("--hash",)])
def test_a_changed_part_is_extracted_again(slide: Path, words: tuple[str, ...]) -> None:
    assert extract(slide, *words).code == 0
    made = bag(slide).stat().st_ino
    assert extract(slide, *words).code == 0
    assert bag(slide).stat().st_ino == made  # unchanged, untouched
    part = slide.with_suffix("") / "Data0000.dat"
    stat = part.stat()
    part.write_bytes(b"pixels of two")  # as many
    os.utime(part, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert extract(slide, *words).code == 0
    assert bag(slide).stat().st_ino != made


def test_another_slide_with_the_same_own_file_is_refused(slide: Path) -> None:
    assert extract(slide).code == 0
    other = slide.parents[1] / "other" / "a.mrxs"
    shutil.copytree(slide.parent, other.parent)
    assert extract(other).code == 0  # a copy is the same slide
    (other.with_suffix("") / "Data0000.dat").write_bytes(b"pixels of two")
    done = extract(other)
    assert done.code == 1
    assert "the store already holds a bag of another slide under the id 'a'" in done.err


@pytest.mark.parametrize("words", [(), ("--hash",)])
def test_a_bag_of_an_earlier_version_stays(slide: Path, words: tuple[str, ...]) -> None:
    """Records knew of a slide's own file alone."""
    assert extract(slide, *words).code == 0
    path = bag(slide).with_suffix(".json")
    record = json.loads(path.read_text())
    source = record["details"]["source"]
    assert source.pop("files") == 2
    source |= {
        "bytes": slide.stat().st_size,
        "mtime_ns": slide.stat().st_mtime_ns,
        "sample_sha256": files.sha256_sample(slide, slide.stat().st_size),
        "sha256": files.sha256_file(slide) if words else None,
    }
    path.write_text(json.dumps(files.seal(record)))
    made = bag(slide).stat().st_ino
    assert extract(slide, *words).code == 0
    assert bag(slide).stat().st_ino == made
    moved = slide.parents[1] / "moved"
    slide.parent.rename(moved)
    assert extract(moved / "a.mrxs").code == 0


def test_a_manifest_that_names_one_file_does_not_verify_a_slide_of_several(slide: Path) -> None:
    manifest = slide.parents[1] / "sha256.txt"
    manifest.write_text(f"{files.sha256_file(slide)}  a.mrxs\n")
    assert extract(slide, "--manifest", manifest).code == 0
    provenance = BagStore(bag(slide).parent).record("a").provenance
    assert provenance is not None
    assert provenance.slide is not None
    assert not provenance.slide.verified
    assert provenance.slide.sha256 != files.sha256_file(slide)  # of all its files
    manifest.write_text(f"{'0' * 64}  a.mrxs\n")
    assert "not the file of the manifest" in extract(slide, "--manifest", manifest).err


def test_files_of_a_series_that_are_named_one_by_one_are_one_slide(tmp_path: Path) -> None:
    first, second = (dicom(tmp_path / f"{n}.dcm", b"1.2.3\0") for n in (1, 2))
    other = dicom(tmp_path / "3.dcm", b"1.2.4\0")
    assert find_slides([second, first, other]) == [first, other]
    assert find_slides([second]) == [second]
