"""Writes `lock.txt`: `constraints.txt` with the hashes of every file that pip finds of each version.

`python -m tests.supply.lock` asks wherever pip is told to look, folders of this machine among them, and keeps names and
hashes, never where a file came from. Files of all platforms are kept, so that the lock is one for all machines.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pip._internal.cli.req_command import RequirementCommand
from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link
from pip._vendor.packaging.tags import Tag
from pip._vendor.packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pip._vendor.packaging.version import InvalidVersion, Version

from tests.supply.pins import CONSTRAINTS, LOCK, Pin, read

HEAD = "# Made by `python -m tests.supply.lock` from constraints.txt; do not edit.\n"
#: the interpreters of pyproject.toml's requires-python
INTERPRETERS = ("cp311", "cp312", "cp313", "cp314")


def main() -> None:
    pins = read(CONSTRAINTS)
    with _pip() as collector:
        locked = [Pin(pin.name, pin.version, pin.marker, tuple(sorted(_hashes(collector, pin)))) for pin in pins]
    without = [pin.name for pin in locked if not pin.hashes]
    if without:
        raise SystemExit(f"pip finds no file of {', '.join(without)}; nothing was written")
    LOCK.write_text(HEAD + "".join(f"{pin.line()}\n" for pin in locked))
    files = sum(len(pin.hashes) for pin in locked)
    sys.stdout.write(f"{LOCK.name}: {len(locked)} versions, {files} files\n")


@contextmanager
def _pip() -> Iterator[Any]:
    """Pip's own way of asking: its configuration, its certificates, its proxies."""
    command = create_command("download")
    assert isinstance(command, RequirementCommand)
    options, _ = command.parse_args(["--no-deps", "any"])
    with command.main_context():
        yield command._build_package_finder(options, command.get_default_session(options))._link_collector


def _hashes(collector: Any, pin: Pin) -> set[str]:
    return {_hash(link) for link in _links(collector, pin.name) if _is_of(link.filename, pin)}


def _links(collector: Any, name: str) -> Iterator[Link]:
    def listed(page: Link) -> Iterator[Link]:
        answer = collector.fetch_response(page)
        return iter(()) if answer is None else iter(list(parse_links(answer)))

    sources = collector.collect_sources(name, candidates_from_page=listed)
    for source in [*sources.find_links, *sources.index_urls]:
        if source is not None:
            yield from source.page_candidates()
            yield from source.file_links()


def _hash(link: Link) -> str:
    if link.is_file and link.hash_name != "sha256":
        return hashlib.sha256(Path(link.file_path).read_bytes()).hexdigest()
    if link.hash_name != "sha256" or link.hash is None:
        raise SystemExit(f"no SHA-256 is told of {link.filename}")
    return link.hash


def _is_of(filename: str, pin: Pin) -> bool:
    """Whether it is a file of this version that one of the interpreters can use; local versions (+cpu) are."""
    try:
        if filename.endswith(".whl"):
            name, version, _, tags = parse_wheel_filename(filename)
            fits = any(_usable(tag) for tag in tags)
        else:
            name, version = parse_sdist_filename(filename)
            fits = True
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False
    return fits and name == canonicalize_name(pin.name) and Version(version.public) == Version(pin.version)


def _usable(tag: Tag) -> bool:
    if tag.interpreter.startswith("py"):
        return tag.interpreter in ("py3", "py311", "py312", "py313", "py314")
    stable = tag.abi == "abi3" and tag.interpreter.startswith("cp3")
    return stable or (tag.interpreter in INTERPRETERS and tag.abi in (tag.interpreter, "none"))


if __name__ == "__main__":
    main()
