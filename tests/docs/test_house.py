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


#: functions that take ten parameters or more for a reason; every other takes a spec
MANY = {
    "door.py:fit": "the door for Python: keywords, as scikit-learn's users know them",
    "models/ssm/ssd_stream.py:forward": "torch differentiates what an autograd function is given one by one",
    "models/zoo/marble_fast.py:forward": "the same",
}


def test_what_would_take_ten_parameters_takes_a_spec() -> None:
    """But for verbs, whose parameters are their flags, and models, whose options are the keywords of `__init__`."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls", "ctx")])
                count += (node.args.vararg is not None) + (node.args.kwarg is not None)
                is_options = node.name == "__init__" and place.startswith("models/zoo/")
                if count >= 10 and not place.startswith("cli/") and not is_options:
                    found.add(f"{place}:{node.name}")
    assert found == set(MANY)


def test_a_public_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
