"""What a gate's tests said, read from the lines they left, and the file that keeps it."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from marble import files
from marble.version import VERSION
from tests.docs.pages import ROOT

STATE = ROOT / "docs" / "reliability.json"
LIBRARIES = ("torch", "numpy", "safetensors", "openslide-bin", "tifffile", "ray")
Mode = Literal["full", "smoke"]
Outcome = Literal["held", "failed", "skipped", "stopped"]


@dataclass(frozen=True)
class Result:
    """One gate, run once.

    Args:
        reduced: whether some tests tried a tenth of their cases; many have no more to try in full.
        tried: cases tried; a test that failed loses every case it tried.
        skipped: why tests were not run, if any.
        failed: names of tests that failed.
        versions: of Python, MARBLE and the libraries the gates depend on.
        sources: fingerprint of the package and the gate's tests when it was run.
    """

    gate: str
    mode: Mode
    outcome: Outcome
    reduced: bool
    tried: int
    survived: int
    minutes: float
    date: str
    commit: str
    versions: dict[str, str]
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    sources: str = ""

    @property
    def lost(self) -> int:
        return self.tried - self.survived


@dataclass(frozen=True)
class Counted:
    """The cases of some tests; `left` are those that were not reached."""

    tried: int
    survived: int
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    reduced: bool = False
    left: tuple[str, ...] = ()
    seconds: float = 0.0


def count(report: Path, tests: Sequence[str]) -> Counted:
    """Cases tried and survived by the tests that these node ids name, in a file of `tests.reliability.counting`."""
    lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    collected = [name for line in lines for name in line.get("collected", ()) if _is_named(name, tests)]
    ended = {line["test"]: line for line in lines if "test" in line and _is_named(line["test"], tests)}
    tried = [line for line in ended.values() if line["outcome"] != "skipped"]
    return Counted(
        sum(line["cases"] for line in tried),
        sum(line["cases"] for line in tried if line["outcome"] == "passed"),
        tuple(line["test"].rpartition("::")[2] for line in tried if line["outcome"] == "failed"),
        tuple(dict.fromkeys(line["why"] for line in ended.values() if line["outcome"] == "skipped")),
        any(line["reduced"] for line in ended.values()),
        tuple(name for name in collected if name not in ended),
        sum(line["seconds"] for line in ended.values()),
    )


def _is_named(test: str, names: Sequence[str]) -> bool:
    return any(test == name or test.startswith((f"{name}::", f"{name}[")) for name in names)


def load(path: Path = STATE) -> dict[tuple[str, Mode], Result]:
    """The newest result of every gate and mode."""
    if not path.exists():
        return {}
    rows = [Result(**row | {k: tuple(row[k]) for k in ("failed", "skipped")}) for row in json.loads(path.read_text())]
    return {(row.gate, row.mode): row for row in rows}


def still_holds(before: Result | None, sources: str) -> bool:
    """Whether a gate held with these very sources and libraries."""
    return (
        before is not None and before.outcome == "held" and (before.sources, before.versions) == (sources, versions())
    )


def keep(result: Result, path: Path = STATE) -> None:
    """Put one result in the place of the last of its gate and mode."""
    found = load(path) | {(result.gate, result.mode): result}
    files.publish(path, json.dumps([asdict(found[key]) for key in sorted(found)], indent=1) + "\n")


def commit() -> str:
    """The commit at work; with a + where sources or tests differ from it."""
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if said.returncode:
        return "unknown"
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "tests"], cwd=ROOT, check=False).returncode
    return said.stdout.strip() + ("+" if changed else "")


def versions() -> dict[str, str]:
    found = {"marble": VERSION, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found
