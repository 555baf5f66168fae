"""The project's pages and messages, and what they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from marble.cli import VERBS, assemble

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "marble").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```([\w-]*)[^\n]*\n(.*?)^\1```", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of code in a page."""

    language: str
    text: str


def blocks(path: Path) -> list[Block]:
    return [Block(language, text) for _, language, text in FENCE.findall(path.read_text())]


def messages() -> Iterator[tuple[str, str]]:
    """Every text of the source but docstrings, with its place; what is put into an f-string shows as `{}`."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                parts = [str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values]
                yield place, "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | told:
                yield place, node.value


def hints() -> Iterator[tuple[str, str]]:
    """The text of every `hint=` in the source, with its place."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                texts = [
                    n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)
                ]
                yield f"{path.relative_to(ROOT)}:{node.value.lineno}", "".join(texts)


def flags_of_verbs() -> dict[str, set[str]]:
    """Every flag of every verb, with the forms that switch it off."""
    import typer

    command = typer.main.get_command(assemble())
    found: dict[str, set[str]] = {}
    for verb in VERBS:
        parameters = command.commands[verb].params  # type: ignore[attr-defined]
        found[verb] = {flag for one in parameters for flag in (*one.opts, *one.secondary_opts) if flag.startswith("--")}
        found[verb] |= {"--help"}
    return found
