"""`marble doctor`: short by default, everything on request, and a bill of materials."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from marble.doctor import Check, summarise
from marble.version import VERSION
from tests.cli.commands import marble


def test_at_most_25_lines_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = marble("doctor")
    assert done.code == 0, done.out
    assert len(done.out.splitlines()) <= 25
    for word in ("torch", "scan backend", "lite0", "OpenSlide", "viewer"):
        assert word in done.out
    assert len(marble("doctor", "--all").out.splitlines()) > 25


def test_a_fault_is_never_merged_away() -> None:
    checks = [
        Check("torch", "ok", "2.9", group="packages"),
        Check("numpy", "ok", "2.1", group="packages"),
        Check("pydantic", "fault", "1.0", "Needs 2.10", group="packages"),
        Check("encoder a", "note", "no weights", "Get them", group="encoder"),
        Check("encoder b", "note", "no weights", "Get them", group="encoder"),
        Check("python", "ok", "3.12"),
    ]
    assert [(c.what, c.state, c.detail) for c in summarise(checks)] == [
        ("packages", "ok", "torch 2.9, numpy 2.1"),
        ("pydantic", "fault", "1.0"),
        ("encoder", "note", "a, b"),
        ("python", "ok", "3.12"),
    ]


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "sbom.json"
    assert marble("doctor", "--sbom", path).code == 0
    bill = json.loads(path.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["version"] == VERSION
    by_name = {one["name"]: one for one in bill["components"]}
    assert by_name["torch"]["version"] == version("torch")
    assert by_name["numpy"]["purl"] == f"pkg:pypi/numpy@{version('numpy')}"
    assert all(one.get("licenses") for name, one in by_name.items() if name in ("numpy", "torch", "pydantic"))
    refs = {one["bom-ref"] for one in bill["components"]}
    assert len(refs) == len(bill["components"])
    needs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert by_name["numpy"]["bom-ref"] in needs[by_name["scipy"]["bom-ref"]]
    assert all(ref in refs for found in needs.values() for ref in found)
    before = path.read_bytes()
    assert marble("doctor", "--sbom", path).code == 0
    assert path.read_bytes() == before
