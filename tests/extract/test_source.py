"""Slide files: which are found, what they are called, whether they are what they were."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from marble.errors import InputError, IntegrityError, TableError
from marble.extract import find_slides, read_manifest
from marble.extract.source import SlideFacts, Source, name_clashes


def touch(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def dicom(path: Path, series: bytes) -> Path:
    return touch(path, bytes(128) + b"DICM" + b"\x20\x00\x0e\x00UI" + len(series).to_bytes(2, "little") + series)


def test_folders_are_searched_and_files_taken_as_given(tmp_path: Path) -> None:
    wanted = [touch(tmp_path / name) for name in ("a.svs", "deep/er/b.NDPI", "deep/c.ome.tiff", "d.mrxs")]
    for name in ("notes.txt", "e.png", ".hidden.svs", "d/Data0001.dat"):
        touch(tmp_path / name)
    png = tmp_path / "e.png"
    assert find_slides([tmp_path]) == sorted(wanted)
    assert find_slides([tmp_path, tmp_path / "a.svs", png]) == sorted([*wanted, png])
    with pytest.raises(InputError, match="no such file"):
        find_slides([tmp_path / "nowhere"])


def test_a_dicom_series_is_one_slide(tmp_path: Path) -> None:
    first = dicom(tmp_path / "case" / "1.dcm", b"1.2.3\0")
    dicom(tmp_path / "case" / "2.dcm", b"1.2.3\0")
    other = dicom(tmp_path / "case" / "3.dcm", b"1.2.4\0")
    elsewhere = dicom(tmp_path / "copy" / "9.dcm", b"1.2.3\0")
    unknown = touch(tmp_path / "case" / "4.dcm", b"no header")
    assert find_slides([tmp_path]) == sorted([first, other, elsewhere, unknown])


def test_slides_that_cannot_be_told_apart_are_named() -> None:
    paths = [Path(p) for p in ("a/x.svs", "b/x.tiff", "y.svs", "Y.svs", "caf\u00e9.svs", "cafe\u0301.svs", "z.svs")]
    clashes = name_clashes(paths)
    assert set(clashes) == set(paths[:6])
    assert "b/x.tiff" in clashes[paths[0]]


def test_manifests_of_both_kinds(tmp_path: Path) -> None:
    one, two = "a" * 64, "B" * 64
    table = touch(tmp_path / "m.csv", f"sha256,file\n{one},x.svs\n{two},deep/y.svs\n".encode())
    assert read_manifest(table) == {"x.svs": one, "y.svs": two.lower()}
    sums = touch(tmp_path / "sums", f"{one}  x y.svs\n{two} *y.svs\n".encode())
    assert read_manifest(sums) == {"x y.svs": one, "y.svs": two.lower()}
    turned = touch(tmp_path / "turned.csv", f"file,sha256\nx.svs,{one}\n".encode())
    assert read_manifest(turned) == {"x.svs": one}
    with pytest.raises(TableError, match="row 2"):
        read_manifest(touch(tmp_path / "bad.csv", f"sha256,file\n{one[:-1]},x.svs\n".encode()))
    with pytest.raises(TableError, match="occurs twice"):
        read_manifest(touch(tmp_path / "twice.csv", f"{one},x.svs\n{two},x.svs\n".encode()))


def source_of(path: Path, *, hashed: bool = False, expect: str | None = None, mpp: float | None = None) -> Source:
    return Source.of(path, SlideFacts(mpp=mpp, expect_sha256=expect, hash_source=hashed))


def test_a_file_is_known_by_its_hash_or_by_size_and_time(tmp_path: Path) -> None:
    path = touch(tmp_path / "x.svs", b"first")
    plain, hashed = source_of(path).record(), source_of(path, hashed=True).record()
    assert source_of(path).is_that_of(plain, path)
    assert source_of(path).is_that_of(hashed, path)
    assert not source_of(path, hashed=True).is_that_of(plain, path)  # the record must tell what is asked of it
    assert not source_of(path, mpp=0.5).is_that_of(plain, path)
    os.utime(path, ns=(1, 1))
    assert not source_of(path).is_that_of(plain, path)
    assert source_of(path).is_that_of(hashed, path)
    touch(path, b"other")
    assert not source_of(path).is_that_of(hashed, path)
    assert not source_of(path).is_that_of({}, path)


def test_an_expected_hash_is_compared_before_anything_else(tmp_path: Path) -> None:
    path = touch(tmp_path / "x.svs", b"slide")
    digest = hashlib.sha256(b"slide").hexdigest()
    assert source_of(path, expect=digest.upper()).verified
    assert not source_of(path, hashed=True).verified
    assert not source_of(path, expect=digest).is_that_of(source_of(path, hashed=True).record(), path)
    with pytest.raises(IntegrityError, match="not the file of the manifest"):
        source_of(path, expect="0" * 64)
    with pytest.raises(InputError, match="cannot be read"):
        source_of(tmp_path / "gone.svs")


def test_linked_folders_are_looked_into_once(tmp_path: Path) -> None:
    """Slides behind a link to a folder were left out without a word."""
    for place in ("study/own", "archive/siteA", "archive/siteB"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / f"{Path(place).name}.svs").write_bytes(b"x")
    study = tmp_path / "study"
    (study / "a").symlink_to(tmp_path / "archive")
    (study / "b").symlink_to(tmp_path / "archive" / "siteA")
    (study / "again").symlink_to(study / "own")  # known by its own name
    (tmp_path / "archive" / "round").symlink_to(study)  # leads back to where it started
    assert [str(path.relative_to(study)) for path in find_slides([study])] == [
        "a/siteA/siteA.svs",
        "a/siteB/siteB.svs",
        "own/own.svs",
    ]
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "notes").symlink_to(tmp_path / "study" / "own")
    assert [path.name for path in find_slides([linked])] == ["own.svs"]
