"""Every gate names tests that exist, or says why there are none; the page is made from it."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.reliability import page, results, sources
from tests.reliability.gates import GATES, ROOMS, Gate


def names(path: Path) -> set[str]:
    """`test_x`, `TestX` and `TestX::test_y` of a file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.id)
def test_a_gate_names_tests_that_exist_or_why_there_are_none(gate: Gate) -> None:
    assert gate.id[0] in ROOMS
    assert bool(gate.tests) != bool(gate.without) or gate.lacks == "no test yet"
    for test in gate.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not name or name in names(ROOT / file), test


def test_ids_are_there_once() -> None:
    assert len({gate.id for gate in GATES}) == len(GATES)


def test_every_reliability_test_belongs_to_a_gate() -> None:
    held = {test.partition("::")[0] for gate in GATES for test in gate.tests}
    files = {str(path.relative_to(ROOT)) for path in Path(__file__).parent.glob("test_*.py")}
    assert files - held == {"tests/reliability/test_registry.py"}


def test_the_page_is_what_the_kept_results_make() -> None:
    assert page.PAGE.read_text() == page.text(), "write it anew: python -m tests.reliability --page"


LINES = [
    {"collected": ["t.py::a", "t.py::b[1]", "t.py::b[2]", "t.py::c", "t.py::d", "u.py::a", "u.py::e", "t.py::bc"]},
    {"test": "t.py::a", "outcome": "passed", "why": "", "cases": 7, "reduced": False, "seconds": 1.5},
    {"test": "t.py::b[1]", "outcome": "passed", "why": "", "cases": 1, "reduced": True, "seconds": 0.5},
    {"test": "t.py::c", "outcome": "failed", "why": "", "cases": 5, "reduced": False, "seconds": 0.0},
    {"test": "t.py::d", "outcome": "skipped", "why": "no cluster", "cases": 1, "reduced": False, "seconds": 0.0},
    {"test": "u.py::a", "outcome": "passed", "why": "", "cases": 9, "reduced": False, "seconds": 0.0},
]


def test_cases_are_counted_and_a_failed_test_loses_all_of_its_own(tmp_path: Path) -> None:
    report = tmp_path / "lines"
    assert results.count(report, ["t.py"]) == results.Counted(0, 0, (), ())
    report.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    counted = results.count(report, ["t.py::a", "t.py::b", "t.py::c", "t.py::d"])
    assert counted == results.Counted(13, 8, ("c",), ("no cluster",), True, ("t.py::b[2]",), 2.0)
    assert results.count(report, ["u.py"]) == results.Counted(9, 9, (), (), False, ("u.py::e",), 0.0)


def test_a_gate_is_run_again_when_the_package_or_its_tests_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "src/marble/a.py": "A = 1", "src/marble/native/kernels.so": "x", "docs/page.md": "x",
        "tests/conftest.py": "", "tests/used.py": "from tests.deep import x", "tests/deep.py": "", "tests/other.py": "",
        "tests/script.py": "", "tests/test_one.py": "from tests import used\nS = '''\nfrom tests.script import y\n'''",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    gate = Gate("A1", "", None, ("tests/test_one.py::test_x",))
    now = sources.fingerprint(gate)
    matters = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text + "\n# changed")
        matters += [name] if sources.fingerprint(gate) != now else []
        (tmp_path / name).write_text(text)
    assert matters == [
        "src/marble/a.py", "tests/conftest.py", "tests/used.py", "tests/deep.py", "tests/script.py",
        "tests/test_one.py",
    ]  # fmt: skip
    row = results.Result("A1", "full", "held", False, 3, 3, 0.1, "2026-01-01", "abc", results.versions(), sources=now)
    assert results.still_holds(row, now)
    assert not results.still_holds(row, "other")
    assert not results.still_holds(replace(row, versions={}), now)
    assert not results.still_holds(replace(row, outcome="failed"), now)
    assert not results.still_holds(None, now)


def test_results_are_kept_by_gate_and_mode(tmp_path: Path) -> None:
    one = results.Result("A1", "smoke", "held", True, 3, 3, 0.1, "2026-01-01", "abc", {"python": "3"})
    other = results.Result(
        "A1", "full", "failed", False, 30, 20, 0.1, "2026-01-01", "abc", {"python": "3"}, ("x",), ("y",)
    )
    for result in (one, other, one):
        results.keep(result, tmp_path / "kept.json")
    assert list(results.load(tmp_path / "kept.json").values()) == [other, one]
    assert other.lost == 10
