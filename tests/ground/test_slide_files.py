"""Which files a slide consists of, and what tells two slides of several files apart."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from marble.pseudonyms import pseudonyms_for
from marble.slide_files import FileLook, files_of, look_at, together


def mirax(folder: Path, name: str, data: bytes = b"data") -> Path:
    """As a scanner leaves it: a small picture, the same for many slides, and a folder of its name."""
    parts = folder / name
    parts.mkdir(parents=True)
    for part, content in (("Slidedat.ini", b"[GENERAL]"), ("Index.dat", b"index"), ("Data0000.dat", data)):
        (parts / part).write_bytes(content)
    path = folder / f"{name}.mrxs"
    path.write_bytes(b"the same small picture")
    return path


def dicom(path: Path, series: bytes, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tag = b"\x20\x00\x0e\x00UI" + len(series).to_bytes(2, "little") + series
    path.write_bytes(bytes(128) + b"DICM" + tag + content)
    return path


def whole(path: Path, *, hashed: bool = True) -> FileLook:
    parts = files_of(path)
    return together(parts, [look_at(part, hashed=hashed) for part in parts])


def test_the_files_of_a_slide(tmp_path: Path) -> None:
    path = mirax(tmp_path, "a")
    mirax(tmp_path, "b")
    names = ["Data0000.dat", "Index.dat", "Slidedat.ini"]
    assert files_of(path) == (path, *(tmp_path / "a" / name for name in names))

    first, second = (dicom(tmp_path / "d" / f"{n}.dcm", b"1.2.3\0") for n in (1, 2))
    dicom(tmp_path / "d" / "3.dcm", b"1.2.4\0")
    dicom(tmp_path / "copy" / "1.dcm", b"1.2.3\0")
    assert files_of(second) == (second, first)

    index = tmp_path / "v" / "s.vms"
    index.parent.mkdir()
    index.write_text(
        "[Virtual Microscope Specimen]\r\nImageFile=s.jpg\r\nImageFile(1,0)=s(1,0).jpg\r\nMapFile=gone.jpg\r\n"
    )
    for name in ("s.jpg", "s(1,0).jpg", "other.jpg"):
        (index.parent / name).write_bytes(b"x")
    assert files_of(index) == (index, index.parent / "s(1,0).jpg", index.parent / "s.jpg")

    for alone in ("x.svs", "x.ndpi", "gone.mrxs", "gone.dcm"):
        assert files_of(tmp_path / alone) == (tmp_path / alone,)


def test_slides_that_differ_in_one_part_are_two(tmp_path: Path) -> None:
    one, other = mirax(tmp_path, "a", b"data of one"), mirax(tmp_path, "b", b"data of two")
    assert one.read_bytes() == other.read_bytes()
    assert whole(one).sample_sha256 != whole(other).sample_sha256
    assert whole(one).sha256 != whole(other).sha256
    assert whole(one).size == sum(part.stat().st_size for part in files_of(one))
    assert whole(one, hashed=False).sha256 is None


def test_a_slide_of_another_name_is_the_same_slide(tmp_path: Path) -> None:
    path = mirax(tmp_path / "here", "a")
    moved = tmp_path / "b.mrxs"
    shutil.copy(path, moved)
    shutil.copytree(path.with_suffix(""), tmp_path / "b")
    assert whole(moved).sha256 == whole(path).sha256
    assert whole(moved).sample_sha256 == whole(path).sample_sha256
    swapped = tmp_path / "b" / "Data0000.dat"
    swapped.rename(tmp_path / "b" / "Data0001.dat")  # the same bytes, in another place of the slide
    assert whole(moved).sha256 != whole(path).sha256

    dicoms = [dicom(tmp_path / "d" / f"{n}.dcm", b"1.2.3\0", bytes([n])) for n in (1, 2)]
    renamed = [dicom(tmp_path / "e" / f"IM{n}.dcm", b"1.2.3\0", bytes([n])) for n in (2, 1)]
    assert whole(dicoms[0]).sha256 == whole(dicoms[1]).sha256 == whole(renamed[0]).sha256


def test_a_folder_that_somebody_looked_at_is_the_same_slide(tmp_path: Path) -> None:
    path = mirax(tmp_path, "a")
    before = whole(path)
    for name in (".DS_Store", "._Data0000.dat", "Thumbs.db", "desktop.ini"):
        (tmp_path / "a" / name).write_bytes(b"where the icons are")
    assert whole(path) == before


def test_the_latest_part_tells_when_a_slide_was_changed(tmp_path: Path) -> None:
    path = mirax(tmp_path, "a")
    late = path.stat().st_mtime_ns + 10**12
    os.utime(tmp_path / "a" / "Index.dat", ns=(late, late))
    assert whole(path).mtime_ns == late


def test_pseudonyms_of_slides_whose_own_files_are_equal(tmp_path: Path) -> None:
    table = tmp_path / "map.csv"
    first = mirax(tmp_path / "one", "a", b"data of one")
    (given,) = pseudonyms_for(table, [first]).values()
    shutil.rmtree(first.parent)  # sent away
    second = mirax(tmp_path / "two", "b", b"data of two")
    assert pseudonyms_for(table, [second])[second] != given
    again = mirax(tmp_path / "three", "c", b"data of one")
    assert pseudonyms_for(table, [again])[again] == given  # moved
