"""The table of pseudonyms: who keeps an id, who gets a new one, and what is left of a name in a text."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from marble.cohorts import read_cohort
from marble.errors import InputError, TableError
from marble.pseudonyms import Pseudonyms, nameless, pseudonyms_for, refuse_inside


def slide(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content or path.name)
    return path


def test_ids_are_drawn_and_kept(tmp_path: Path) -> None:
    table, paths = tmp_path / "map.csv", [slide(tmp_path / "a.svs"), slide(tmp_path / "b.svs")]
    given = pseudonyms_for(table, paths)
    assert len(set(given.values())) == 2
    assert all(one.startswith("slide-") and len(one) == len("slide-") + 16 for one in given.values())
    before = table.read_bytes()
    assert pseudonyms_for(table, paths[::-1]) == given
    assert table.read_bytes() == before
    other = pseudonyms_for(tmp_path / "other.csv", paths)
    assert not {*other.values()} & {*given.values()}  # drawn, not computed
    assert Pseudonyms.read(table).files() == {given[path]: path for path in paths}


def test_a_moved_file_keeps_its_id_and_a_copy_gets_its_own(tmp_path: Path) -> None:
    table, path = tmp_path / "map.csv", slide(tmp_path / "a.svs")
    (first,) = pseudonyms_for(table, [path]).values()
    copy = tmp_path / "copy.svs"
    shutil.copy(path, copy)
    second = pseudonyms_for(table, [copy])[copy]
    assert second != first
    moved = path.rename(slide(tmp_path / "elsewhere" / "x").with_name("b.svs"))
    assert pseudonyms_for(table, [moved, copy]) == {moved: first, copy: second}
    link = tmp_path / "way"
    link.symlink_to(moved.parent)
    assert pseudonyms_for(table, [link / "b.svs"]) == {link / "b.svs": first}  # this very file by another way
    assert Pseudonyms.read(table).files()[first] == link / "b.svs"


def test_files_that_cannot_be_read_are_not_alike(tmp_path: Path) -> None:
    table, absent = tmp_path / "map.csv", [tmp_path / "a.svs", tmp_path / "b.svs"]
    given = pseudonyms_for(table, absent)
    assert len(set(given.values())) == 2
    assert pseudonyms_for(table, absent) == given


def test_the_table_is_its_owners_alone_and_never_in_the_store(tmp_path: Path) -> None:
    table = tmp_path / "map.csv"
    pseudonyms_for(table, [slide(tmp_path / "a.svs")])
    assert table.stat().st_mode & 0o777 == 0o600
    table.chmod(0o644)
    pseudonyms_for(table, [slide(tmp_path / "b.svs")])
    assert table.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="within the store"):
        refuse_inside(tmp_path / "bags" / "below" / "map.csv", tmp_path / "bags")
    refuse_inside(table, tmp_path / "bags")


def test_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cohort.csv").write_text("slide_id,label\na,b\n")
    with pytest.raises(TableError, match="unknown column 'file'"):
        pseudonyms_for(tmp_path / "cohort.csv", [])


def test_a_cohort_table_calls_slides_by_their_files(tmp_path: Path) -> None:
    table = tmp_path / "map.csv"
    given = pseudonyms_for(table, [slide(tmp_path / "one" / f"s{n}.svs") for n in range(3)])
    cohort = tmp_path / "cohort.csv"
    rows = ["s0.svs,p0,a", "s1,p1,b", f"{tmp_path / 'one' / 's2.svs'},p2,a", "Unknown Name.svs,p3,b"]
    cohort.write_text("slide_id,patient,label\n" + "\n".join(rows) + "\n")
    found = read_cohort(cohort, pseudonyms=table)
    assert {case.case_id: case.slides for case in found.cases} == {
        **{f"p{n}": (slide_id,) for n, slide_id in enumerate(given.values())},
        "p3": ("slide of row 5",),
    }
    assert "Unknown" not in found.summary()
    pseudonyms_for(table, [slide(tmp_path / "two" / "s1.svs", "another")])
    with pytest.raises(InputError, match="files of one name"):
        read_cohort(cohort, pseudonyms=table)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/Meier/Anna B.svs: truncated", "ID: truncated"),
        ("Anna B.svs and Anna B_files", "ID and ID_files"),
        ("[Errno 2] No such file: '/data/Meier/Anna B.svs'", "[Errno 2] No such file: 'ID'"),
        ("below /data/Meier/ is nothing", "below /.../.../ is nothing"),
        ("below Meier/Other.svs", "below .../Other.svs"),
        ("at /data/Meier/Anna%20B.svs", "at ID"),
        ("Annabel has no data", "Annabel has no data"),
        ("slide ID: no tissue", "slide ID: no tissue"),
    ],
)
def test_nothing_is_left_of_a_name(text: str, expected: str) -> None:
    assert nameless(text, Path("/data/Meier/Anna B.svs"), "ID") == expected


def test_a_file_called_slide_leaves_ids_as_they_are() -> None:
    text = "slide.svs: 'slide-12ab' is being worked on"
    assert nameless(text, Path("/x/slide.svs"), "slide-12ab") == "slide-12ab: 'slide-12ab' is being worked on"
