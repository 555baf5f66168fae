"""The oldest versions of packages that read what others made: older ones have known holes, and are refused."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from marble.errors import UnavailableError

#: `OpenSlide` is the library itself; packages are called as pip calls them
FLOORS = {"torch": "2.10", "safetensors": "0.8.0", "OpenSlide": "4.0.1", "starlette": "0.49.1", "ray": "2.52"}
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)[._-]?(a|b|rc|dev)?")


def installed(name: str) -> str | None:
    """The version of a package that pip installed, if it is here; nothing of it is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def is_older(found: str, floor: str) -> bool:
    """Whether a version comes before another, as trials of a version (0.8.0rc1) do and its builds (+cpu) do not."""
    return _order(found) < _order(floor)


def refuse_older(name: str, found: str | None) -> None:
    """What is not here is not too old."""
    if found is not None and is_older(found, FLOORS[name]):
        raise UnavailableError(
            f"{name} {found} is too old: versions before {FLOORS[name]} have known holes",
            hint=f"Install a newer one with {how_to_install(name)}; `marble doctor` lists all of them",
        )


def how_to_install(name: str) -> str:
    package = {"OpenSlide": "openslide-bin"}.get(name, name)
    return f"pip install '{package}>={FLOORS[name]}'"


def _order(text: str) -> tuple[tuple[int, ...], bool]:
    release = _RELEASE.match(text.strip())
    if release is None:
        return (), False  # before everything
    numbers = [int(part) for part in release[1].split(".")]
    while numbers and numbers[-1] == 0:  # 2.10 is 2.10.0
        numbers.pop()
    return tuple(numbers), release[2] is None
