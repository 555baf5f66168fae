"""What lies behind links to folders is found, once, and a link that leads back ends nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from marble.errors import InputError
from marble.training.results import find_runs
from marble.verify import verify_path
from marble.walking import below, named


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    archive, study = tmp_path / "archive", tmp_path / "study"
    (archive / "one").mkdir(parents=True)
    (archive / "one" / "run.json").write_text("{}")
    study.mkdir()
    (study / "linked").symlink_to(archive)
    (study / "again").symlink_to(archive / "one")
    (archive / "back").symlink_to(study)
    assert named(study, "run.json") == [study / "again" / "run.json"]
    assert find_runs(study) == [study / "again"]
    assert len([path for path in below(study) if path.name == "run.json"]) == 1


def test_a_folder_without_links_is_read_in_order(tmp_path: Path) -> None:
    for name in ("b/2", "a/1", "c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [str(path.relative_to(tmp_path)) for path in below(tmp_path)] == ["a", "a/1", "b", "b/2", "c"]
    with pytest.raises(InputError):
        verify_path(tmp_path)
