"""What a gate's tests said, read from pytest's report, and the file that keeps it."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

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
    """The cases of one report."""

    tried: int
    survived: int
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    reduced: bool = False


def count(report: Path) -> Counted:
    """Cases tried and survived in a JUnit XML file of pytest."""
    tried = survived = 0
    failed, skipped = [], []
    cases_of = list(ElementTree.parse(report).iter("testcase"))
    for case in cases_of:
        left_out = case.find("skipped")
        if left_out is not None:
            skipped.append(left_out.get("message", ""))
            continue
        told = [int(one.get("value", "")) for one in case.iter("property") if one.get("name") == "cases"]
        cases = sum(told) if told else 1
        broken = case.find("failure") is not None or case.find("error") is not None
        tried += cases
        survived += 0 if broken else cases
        if broken:
            failed.append(case.get("name", ""))
    reduced = any(one.get("name") == "reduced" for case in cases_of for one in case.iter("property"))
    return Counted(tried, survived, tuple(failed), tuple(dict.fromkeys(skipped)), reduced)


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
