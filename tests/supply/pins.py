"""A lock's lines: one exact version each, on which machines it is meant, and the hashes of its files.

Read before anything is installed, so by the standard library and by what pip brings along.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pip._vendor.packaging.markers import Marker
from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = ROOT / "lock.txt"
_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?:\s*;\s*(?P<marker>.+))?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One version of one package; an empty marker means every machine."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()

    def is_for(self, machine: dict[str, str] | None = None) -> bool:
        """Whether a machine needs it: this one, but for those of its properties that are given."""
        return not self.marker or bool(Marker(self.marker).evaluate(machine))

    def line(self) -> str:
        """As pip reads it."""
        head = f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")
        return " \\\n".join([head, *(f"    --hash=sha256:{one}" for one in self.hashes)])


def read(path: Path) -> list[Pin]:
    """The pins of a file of constraints or of a lock."""
    whole = path.read_text().replace("\\\n", " ").splitlines()
    return [_pin(line) for line in whole if line.strip() and not line.startswith("#")]


def _pin(line: str) -> Pin:
    hashes = tuple(_HASH.findall(line))
    found = _LINE.fullmatch(_HASH.sub("", line).strip())
    if found is None:
        raise SystemExit(f"not one exact version: {line.strip()}")
    return Pin(canonicalize_name(found["name"]), found["version"], (found["marker"] or "").strip(), hashes)


def of_this_machine(pins: Iterable[Pin]) -> dict[str, Pin]:
    return {pin.name: pin for pin in pins if pin.is_for()}
