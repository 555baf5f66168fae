"""Packages with known holes are named by `marble doctor` and refused by whatever would use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import marble.slides.readers.openslide as openslide_reader
from marble import doctor, floors
from marble.compute import cluster
from marble.errors import UnavailableError
from marble.viewer.listening import Listening
from marble.viewer.registry import Places
from marble.viewer.serve import serve
from tests.cli.commands import arguments, marble

OLD = {"torch": "2.9.1+cpu", "safetensors": "0.8.0rc1", "OpenSlide": "4.0.0", "starlette": "0.49.0", "ray": "2.51.2"}


@pytest.mark.parametrize(
    ("found", "floor", "older"),
    [
        ("2.9.1", "2.10", True),
        ("2.10.0+cpu", "2.10", False),
        ("2.10", "2.10.0", False),
        ("2.10.0a0+git1", "2.10", True),
        ("0.8.0rc1", "0.8.0", True),
        ("0.8.0.dev3", "0.8.0", True),
        ("0.8.0.post1", "0.8.0", False),
        ("0.10.0", "0.8.0", False),
        ("4.0.1", "4.0.1", False),
        ("10.0", "4.0.1", False),
        ("unknown", "0.1", True),
    ],
)
def test_versions_are_compared_as_numbers(found: str, floor: str, older: bool) -> None:
    assert floors.is_older(found, floor) is older


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes one of the packages too old; returns its version."""

    def make(name: str) -> str:
        known = floors.installed
        for place in (floors, doctor):
            monkeypatch.setattr(place, "installed", lambda one: OLD[one] if one == name else known(one))
        if name == "OpenSlide":
            monkeypatch.setattr(openslide_reader, "library_version", lambda: OLD[name])
        return OLD[name]

    return make


@pytest.mark.parametrize("name", floors.FLOORS)
def test_doctor_names_what_is_too_old_and_how_to_replace_it(name: str, old: Callable[[str], str]) -> None:
    found = old(name)
    done = marble("doctor", "--all")
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith(name) and "FAULT" in line]
    assert found in line
    said = " ".join(done.out.split())
    assert f"Needs {floors.FLOORS[name]} or newer" in said


@pytest.mark.parametrize("name", ["torch", "safetensors"])
def test_a_command_does_not_start_on_an_old_package(name: str, old: Callable[[str], str], tmp_path: Path) -> None:
    found = old(name)
    for verb in ("extract", "predict", "verify"):
        done = marble(*arguments(verb, tmp_path, tmp_path / "out"))
        assert done.code == 2
        assert done.err.startswith(f"error: {name} {found} is too old")
        assert f"pip install '{name}>={floors.FLOORS[name]}'" in done.err
        assert len(done.err.splitlines()) == 1
    assert marble("extract", "--help").code == 0


def test_the_others_are_refused_where_they_are_used(
    old: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old("OpenSlide")
    with pytest.raises(UnavailableError, match=r"OpenSlide 4\.0\.0 is too old.*openslide-bin>=4\.0\.1"):
        openslide_reader.openslide_vendor(tmp_path / "any.svs")
    monkeypatch.setattr("marble.viewer.serve.installed", lambda name: OLD[name])
    with pytest.raises(UnavailableError, match=r"starlette 0\.49\.0 is too old"):
        serve(Places(tmp_path), Listening(), tell=print)
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "__version__", OLD["ray"])
    with pytest.raises(UnavailableError, match=r"ray 2\.51\.2 is too old"):
        cluster._import_ray()
