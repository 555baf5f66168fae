"""Installs what an extra needs, every file compared with `lock.txt`: `python -m tests.supply.install dev`.

What is needed is read from `pyproject.toml` and then from the packages themselves, as they arrive: a CPU build of torch
needs no CUDA libraries, another machine needs others. Whatever the lock does not know is named and constrained alone.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

from tests.supply.pins import CONSTRAINTS, LOCK, ROOT, Pin, of_this_machine, read

Need = tuple[str, frozenset[str]]  # a package and the extras that are asked of it
#: what builds this package and the one that comes as source; pip takes them as they are, and fetches no others
BUILD = ("editables", "hatchling", "setuptools")
#: compiled at the end, on all cores at once, which pip does on one
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-build-isolation")


def main(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = of_this_machine(read(LOCK))
    take_local_build("torch", lock, _try_pip)
    for wanted in (BUILD, own_requirements(project, extra)):
        complete(wanted, lock, _pip)
    if _installed(project["name"]) is None or extra == "dev":
        _pip("--no-deps", "--editable", str(ROOT))
    compile_all(sysconfig.get_path("purelib"), str(ROOT / "src"))


def compile_all(*folders: str) -> None:
    """Where Python may not write bytecode, every process that is started would compile torch and all else again."""
    for folder in folders:
        compileall.compile_dir(folder, quiet=2, workers=0)  # some packages carry files that are no Python, for a test


def take_local_build(name: str, lock: dict[str, Pin], pip: Callable[..., None]) -> None:
    """Install a package from the folders that pip was told of, if one of its locked files lies there.

    Asked for by hash, pip prefers a file of an index, whose hash it is told, to one that it would have to read: a CPU
    build of torch that lies beside it would never be taken, and its CUDA libraries are gigabytes.
    """
    if name in missing_here([name], lock):
        # where nothing lies there, or nothing that the lock knows, the index has it
        with suppress(subprocess.CalledProcessError):
            _install_locked([lock[name]], pip, "--no-index")


def own_requirements(project: dict[str, object], extra: str) -> Iterator[str]:
    """What the project asks for, with an extra and the extras that this one names."""
    groups = project["optional-dependencies"]
    assert isinstance(groups, dict)
    lines = project["dependencies"]
    assert isinstance(lines, list)
    todo = [*lines, *groups[extra]]
    while todo:
        line = todo.pop(0)
        need = Requirement(line)
        if canonicalize_name(need.name) == project["name"]:
            todo += [one for name in sorted(need.extras) for one in groups[name]]
        else:
            yield line


def complete(wanted: Iterable[str], lock: dict[str, Pin], pip: Callable[..., None]) -> None:
    """Install what is wanted, then what that needs, until nothing is missing."""
    wanted, before = list(wanted), set[str]()
    while missing := missing_here(wanted, lock):
        if set(missing) == before:
            raise SystemExit(f"pip installed these, and yet they are not here: {', '.join(sorted(before))}")
        before = set(missing)
        known = [lock[name] for name in sorted(missing) if name in lock]
        if known:
            _install_locked(known, pip)
        unknown = sorted(set(missing) - set(lock))
        if unknown:
            sys.stdout.write(f"not in {LOCK.name}, so installed without a hash to compare: {', '.join(unknown)}\n")
            pip("--no-deps", "--constraint", str(CONSTRAINTS), *(missing[name] for name in unknown))


def _install_locked(pins: list[Pin], pip: Callable[..., None], *options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "wanted.txt"
        listed.write_text("".join(f"{pin.line()}\n" for pin in pins))
        pip("--no-deps", "--require-hashes", *options, "--requirement", str(listed))


def missing_here(wanted: Iterable[str], lock: dict[str, Pin]) -> dict[str, str]:
    """By name, the requirements of what is wanted, and of what is installed of it, that are not met."""
    missing: dict[str, str] = {}
    todo: list[tuple[str, frozenset[str]]] = [(line, frozenset()) for line in wanted]
    seen: set[Need] = set()
    while todo:
        line, extras = todo.pop()
        need = Requirement(line)
        if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in extras or [""]):
            continue
        name = canonicalize_name(need.name)
        key = (name, frozenset(need.extras))
        found = _installed(name)
        if found is None or not _is_right(found, need, lock.get(name)):
            missing[name] = f"{name}{need.specifier}"
        elif key not in seen:
            seen.add(key)
            todo += [(one, key[1]) for one in found.requires or ()]
    return missing


def _is_right(found: Distribution, need: Requirement, pin: Pin | None) -> bool:
    """The locked version, of which a local build (2.13.0+cpu) is one; without a lock, any that is asked for."""
    wanted = Requirement(f"{pin.name}=={pin.version}") if pin else need
    return wanted.specifier.contains(found.version, prereleases=True)


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _pip(*arguments: str) -> None:
    done = subprocess.run([*PIP, *arguments], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def _try_pip(*arguments: str) -> None:
    """As above, but a failure is no news."""
    subprocess.run([*PIP, *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    main(sys.argv[1])
