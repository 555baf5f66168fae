"""The lock knows every version, pip takes no file that the lock does not know, and nothing else is installed unsaid."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

from marble.floors import FLOORS
from tests.supply.install import PIP, compile_all, complete, missing_here, own_requirements, take_local_build
from tests.supply.lock import _is_of
from tests.supply.pins import CONSTRAINTS, LOCK, ROOT, Pin, read

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SYSTEMS = {"linux": ("Linux", "posix"), "darwin": ("Darwin", "posix"), "win32": ("Windows", "nt")}
PYTHONS = ("3.11.7", "3.12.8", "3.13.1", "3.14.0")


def test_the_lock_is_the_constraints_with_hashes_and_no_addresses(record_property: Callable[..., None]) -> None:
    locked = read(LOCK)
    assert [Pin(pin.name, pin.version, pin.marker) for pin in locked] == read(CONSTRAINTS)
    assert [pin.name for pin in locked if not pin.hashes] == []
    assert not re.search(r"://|@|[/~]", LOCK.read_text().partition("\n")[2].replace(" \\\n", ""))
    record_property("cases", len(locked))


@pytest.mark.parametrize(("system", "python"), list(itertools.product(SYSTEMS, PYTHONS)))
def test_a_machine_is_given_one_version_of_a_package(system: str, python: str) -> None:
    name, kind = SYSTEMS[system]
    machine = {
        "sys_platform": system, "platform_system": name, "os_name": kind,
        "python_full_version": python, "python_version": python.rpartition(".")[0],
    }  # fmt: skip
    given = [pin.name for pin in read(LOCK) if pin.is_for(machine)]
    assert len(given) == len(set(given)) > 100
    for line in own_requirements(PROJECT, "dev"):
        need = Requirement(line)
        if not need.marker or need.marker.evaluate(machine):
            pins = [pin for pin in read(LOCK) if pin.name == canonicalize_name(need.name) and pin.is_for(machine)]
            assert [need.specifier.contains(pin.version) for pin in pins] == [True], line


def test_the_lock_knows_all_that_is_needed_here(record_property: Callable[..., None]) -> None:
    todo, known = list(own_requirements(PROJECT, "dev")), {pin.name for pin in read(LOCK)}
    met = {canonicalize_name(Requirement(line).name) for line in todo}
    absent = {name: Pin(name, "999") for name in known}  # nothing installed is that version, so all of them are missing
    assert set(missing_here(todo, absent)) <= known
    record_property("cases", len(met))


def wheel(folder: Path, name: str, needs: str = "") -> str:
    """A package of one file; returns the hash that pip tells of it."""
    path = folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    about = f"{name.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name.replace('-', '_')}.py", "")
        requires = f"Requires-Dist: {needs}\n" if needs else ""
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")
    told = subprocess.run([sys.executable, "-m", "pip", "hash", str(path)], capture_output=True, text=True, check=True)
    return told.stdout.rpartition("sha256:")[2].strip()


class Shop:
    """A folder that pip installs from, and one that it installs into."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shelf, self.home, self.said = folder / "shelf", folder / "home", ""
        self.shelf.mkdir()
        self.home.mkdir()
        monkeypatch.syspath_prepend(str(self.home))

    def pip(self, *arguments: str) -> None:
        place = ["--no-index", "--find-links", str(self.shelf), "--target", str(self.home)]
        done = subprocess.run([*PIP, *place, *arguments], capture_output=True, text=True, check=False)
        self.said = done.stderr
        if done.returncode:
            raise SystemExit(done.returncode)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path, monkeypatch)


def test_what_is_needed_is_installed_by_hash_and_what_that_needs_too(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = {
        "lock-first": wheel(shop.shelf, "lock-first", "lock-second"),
        "lock-second": wheel(shop.shelf, "lock-second"),
    }
    lock = {name: Pin(name, "1.0", "", ("0" * 64, known)) for name, known in hashes.items()}
    complete(["lock-first"], lock, shop.pip)
    assert [distribution(name).version for name in lock] == ["1.0", "1.0"]
    assert capsys.readouterr().out == ""
    assert missing_here(["lock-first"], lock) == {}


def test_a_file_with_one_changed_byte_is_not_installed(shop: Shop) -> None:
    known = wheel(shop.shelf, "lock-changed")
    (path,) = shop.shelf.iterdir()
    body = bytearray(path.read_bytes())
    body[12] ^= 1  # a second of the first member's time
    path.write_bytes(body)
    with pytest.raises(SystemExit):
        complete(["lock-changed"], {"lock-changed": Pin("lock-changed", "1.0", "", (known,))}, shop.pip)
    assert "DO NOT MATCH THE HASHES" in shop.said
    assert list(shop.home.iterdir()) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_build_that_lies_beside_pip_is_taken_if_the_lock_knows_it(shop: Shop, known: bool) -> None:
    told = wheel(shop.shelf, "lock-local")
    asked: list[tuple[str, ...]] = []

    def pip(*arguments: str) -> None:
        asked.append(arguments)
        try:
            shop.pip(*arguments)
        except SystemExit:
            raise subprocess.CalledProcessError(1, "pip") from None

    lock = {"lock-local": Pin("lock-local", "1.0", "", (told if known else "0" * 64,))}
    take_local_build("lock-local", lock, pip)
    assert (missing_here(["lock-local"], lock) == {}) is known
    assert "--no-index" in asked[0]
    take_local_build("lock-local", lock, pip)
    assert len(asked) == 2 - known  # what is there is not asked for again


def test_what_the_lock_does_not_know_is_named(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    known = wheel(shop.shelf, "lock-known", "lock-unknown>=0.5")
    wheel(shop.shelf, "lock-unknown")
    complete(["lock-known"], {"lock-known": Pin("lock-known", "1.0", "", (known,))}, shop.pip)
    assert capsys.readouterr().out == "not in lock.txt, so installed without a hash to compare: lock-unknown\n"
    assert distribution("lock-unknown").version == "1.0"


@pytest.mark.parametrize(
    ("filename", "taken"),
    [
        ("torch-2.13.0-cp312-cp312-win_amd64.whl", True),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("torch-2.13.0.tar.gz", True),
        ("torch-2.13.0-py3-none-any.whl", True),
        ("torch-2.13.0-cp39-abi3-macosx_11_0_arm64.whl", True),
        ("torch-2.13.0-cp310-cp310-win_amd64.whl", False),
        ("torch-2.13.0-cp313-cp313t-win_amd64.whl", False),
        ("torch-2.13.0rc1.tar.gz", False),
        ("torch-2.13.1.tar.gz", False),
        ("torchvision-2.13.0.tar.gz", False),
        ("torch-2.13.0.tar.gz.asc", False),
        ("", False),
    ],
)
def test_the_files_of_a_version(filename: str, taken: bool) -> None:
    assert _is_of(filename, Pin("torch", "2.13.0")) is taken


def test_the_project_asks_for_nothing_below_a_floor() -> None:
    names = {"OpenSlide": "openslide-bin"}
    asked = {Requirement(line).name: Requirement(line).specifier for line in own_requirements(PROJECT, "dev")}
    for name, floor in FLOORS.items():
        lowest = [one.version for one in asked[names.get(name, name)] if one.operator == ">="]
        assert [Requirement(f"x>={floor}").specifier.contains(one) for one in lowest] == [True], name


def test_what_is_installed_is_compiled_and_files_that_are_no_python_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    good = tmp_path / "package" / "good.py"
    good.write_text("answer = 42\n")
    (tmp_path / "package" / "bad.py").write_text("def :\n")
    compile_all(str(tmp_path))
    assert Path(cache_from_source(str(good))).exists()
