"""Writes the tree of `docs/reference/house.md` from the source and its docstrings: `python -m tests.docs.house`."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "house.md"
PACKAGE = ROOT / "src" / "marble"
BEGIN, END = "<!-- the tree, made by `make house` -->", "<!-- end of the tree -->"


def tree() -> str:
    """Every room from the top floor down, and every file in it with the first sentence of its docstring."""
    lines = []
    for floor in _floors():
        lines.append("")
        for room in floor:
            path = PACKAGE / room
            if path.is_dir():
                lines.append(f"{room}/".ljust(28) + _says(path / "__init__.py"))
                lines += _files(path, depth=1)
            else:
                lines.append(f"{room}.py".ljust(28) + _says(path.with_suffix(".py")))
    return "\n".join(["```text", *lines[1:], "```"])


def _floors() -> list[list[str]]:
    """The layers of the import rules; rooms that no rule names are named here and nowhere else."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(rule["layers"] for rule in rules if rule["type"] == "layers")
    floors = [re.findall(r"marble\.(\w+)", layer) for layer in layers]
    floors = [
        [room for room in floor if (PACKAGE / room).exists() or (PACKAGE / f"{room}.py").exists()] for floor in floors
    ]
    named = {room for floor in floors for room in floor}
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    others = sorted(there - named - {"__init__", "__main__", "__pycache__"})
    return [floor for floor in floors if floor] + ([others] if others else [])


def _files(folder: Path, depth: int) -> list[str]:
    lines = []
    for path in sorted(folder.iterdir()):
        indent = "  " * depth
        if path.suffix == ".py" and path.name != "__init__.py":
            lines.append(f"{indent}{path.stem}".ljust(28) + _says(path))
        elif (path / "__init__.py").exists():
            lines.append(f"{indent}{path.name}/".ljust(28) + _says(path / "__init__.py"))
            lines += _files(path, depth + 1)
    return lines


def _says(path: Path) -> str:
    told = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.;]) ", told, maxsplit=1)[0].rstrip(".;")
    return sentence if len(sentence) <= 110 else sentence[:107].rsplit(" ", 1)[0] + " ..."


def page() -> str:
    """The page as it should be: what is written by hand, with the tree of today in its place."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{tree()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
