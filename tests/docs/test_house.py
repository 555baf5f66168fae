"""The page of the house is the house: its tree, and every stop of the walk of one slide."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.house import PACKAGE, PAGE, page

STOP = re.compile(r"^\d+\. `([\w/.]+\.py)` `([\w.]+)`", re.M)
WALK = STOP.findall(PAGE.read_text())


def test_the_tree_is_that_of_today() -> None:
    assert PAGE.read_text() == page(), "run `make house`"


@pytest.mark.parametrize(("file", "name"), WALK, ids=[f"{file}:{name}" for file, name in WALK])
def test_every_stop_of_the_walk_exists(file: str, name: str) -> None:
    nodes: list[ast.stmt] = ast.parse((PACKAGE / file).read_text()).body
    for part in name.split("."):
        found = [
            node
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == part
        ]
        assert found, f"{file} has no {name}"
        nodes = found[0].body


def test_the_walk_has_both_ends() -> None:
    stops = [f"{file}:{name}" for file, name in WALK]
    assert stops[0] == "cli/extract.py:extract"
    assert "reports/tables.py:table_rows" in stops
    assert stops[-1].startswith("viewer/")
