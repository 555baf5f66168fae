"""What a gate's outcome depends on: the package, the gate's own tests and whatever of `tests` these import."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.docs.pages import ROOT
from tests.reliability.gates import Gate

#: made from the sources that are counted, or from packages whose versions are kept beside the outcome
_MADE = ("__pycache__", "vendor", "build")
_MADE_SUFFIXES = (".so", ".dylib", ".pyc")


def fingerprint(gate: Gate) -> str:
    """Equal as long as neither the package nor a file that the gate's tests are made of has changed.

    A change of pages, or of tests that the gate does not use, throws no outcome away.
    """
    return _hashed([*_package(), *_closure(gate)])


def _package() -> tuple[Path, ...]:
    below = sorted((ROOT / "src" / "marble").rglob("*"))
    return tuple(
        path
        for path in below
        if path.is_file() and path.suffix not in _MADE_SUFFIXES and not set(path.relative_to(ROOT).parts) & set(_MADE)
    )


def _closure(gate: Gate) -> list[Path]:
    """The files of a gate's tests, the fixtures around them, and all that they import from `tests`."""
    todo = [ROOT / test.partition("::")[0] for test in gate.tests]
    todo += [above / "conftest.py" for path in list(todo) for above in path.parents if ROOT in above.parents]
    found: set[Path] = set()
    while todo:
        path = todo.pop()
        if path not in found and path.is_file():
            found.add(path)
            todo += _imported(path)
    return sorted(found)


def _imported(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text())):
        names: Iterable[str] = ()
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (node.module, *(f"{node.module}.{one.name}" for one in node.names))
        elif isinstance(node, ast.Import):
            names = (one.name for one in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # scripts that a test starts
            names = (
                line.split()[1] for line in node.value.splitlines() if line.startswith(("from tests.", "import tests."))
            )
        for name in names:
            if name.partition(".")[0] == "tests":
                yield ROOT.joinpath(*name.split(".")).with_suffix(".py")


def _hashed(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
