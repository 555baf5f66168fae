"""Every gate names tests that exist, or says why there are none; the page is made from it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.reliability import page, results
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


REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="cases" value="7"/></properties></testcase>
<testcase name="b"><properties><property name="reduced" value="1"/></properties></testcase>
<testcase name="c"><properties><property name="cases" value="5"/></properties><failure message="x"/></testcase>
<testcase name="d"><skipped message="no cluster"/></testcase>
</testsuite></testsuites>"""


def test_cases_are_counted_and_a_failed_test_loses_all_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "r.xml").write_text(REPORT)
    assert results.count(tmp_path / "r.xml") == results.Counted(13, 8, ("c",), ("no cluster",), True)


def test_results_are_kept_by_gate_and_mode(tmp_path: Path) -> None:
    one = results.Result("A1", "smoke", "held", True, 3, 3, 0.1, "2026-01-01", "abc", {"python": "3"})
    other = results.Result(
        "A1", "full", "failed", False, 30, 20, 0.1, "2026-01-01", "abc", {"python": "3"}, ("x",), ("y",)
    )
    for result in (one, other, one):
        results.keep(result, tmp_path / "kept.json")
    assert list(results.load(tmp_path / "kept.json").values()) == [other, one]
    assert other.lost == 10
