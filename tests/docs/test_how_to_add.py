"""A stranger's test: what each "How to add" page says is done literally in a copy, and its own check passes there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PAGES = sorted((ROOT / "docs" / "how-to").glob("add-*.md"))
NEW = re.compile(r"# new file (\S+)\n(.*)", re.S)
AFTER = re.compile(r"# in (\S+) after: ([^\n]+)\n(.*)", re.S)
AT_THE_END = re.compile(r"# at the end of (\S+)\n(.*)", re.S)


def _copy(to: Path) -> Path:
    """The repository without what is large: the golden data is linked."""
    ignore = shutil.ignore_patterns("__pycache__", "data", "vendor", "node_modules")
    for name in ("src", "tests", "docs", "experiments"):
        shutil.copytree(ROOT / name, to / name, ignore=ignore)
    for name in (
        "pyproject.toml",
        "conftest.py",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "Makefile",
        "mkdocs.yml",
    ):
        shutil.copy(ROOT / name, to / name)
    (to / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    return to


def _do(text: str, home: Path) -> None:
    """What a block says: a new file, lines after a line, lines at the end."""
    if new := NEW.match(text):
        path = home / new[1]
        assert not path.exists(), path
        path.write_text(new[2])
    elif after := AFTER.match(text):
        path = home / after[1]
        lines = path.read_text().splitlines(keepends=True)
        places = [place for place, line in enumerate(lines) if line.strip().startswith(after[2])]
        assert len(places) == 1, f"{after[2]!r} stands {len(places)} times in {after[1]}"
        lines.insert(places[0] + 1, after[3])
        path.write_text("".join(lines))
    elif end := AT_THE_END.match(text):
        path = home / end[1]
        path.write_text(path.read_text() + end[2])


def test_there_is_a_page_for_each() -> None:
    assert [page.stem for page in PAGES] == [
        "add-a-cohort-table", "add-a-command", "add-a-metric", "add-a-model", "add-a-slide-format", "add-a-task",
        "add-an-encoder",
    ]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_page_says_works(page: Path, tmp_path: Path) -> None:
    home = _copy(tmp_path)
    for block in blocks(page):
        _do(block.text, home)
    checks = [block.text for block in blocks(page) if block.language == "bash"]
    assert len(checks) == 1
    words = shlex.split(checks[0])
    assert words[:3] == ["python", "-m", "pytest"]
    done = subprocess.run(
        [sys.executable, *words[1:], "-q", "-p", "no:cacheprovider"],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(home / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout


ONE_FILE_ONE_LINE = {
    "add-a-model": (1, 1),
    "add-an-encoder": (0, 1),
    "add-a-slide-format": (1, 1),
    "add-a-task": (1, 1),
}


@pytest.mark.parametrize("name", ONE_FILE_ONE_LINE)
def test_how_little_it_takes(name: str) -> None:
    """In the package: a model, a format and a task are one file and one line, an encoder one row."""
    said = [block.text for block in blocks(ROOT / "docs" / "how-to" / f"{name}.md") if "src/marble" in block.text[:60]]
    files = [text for text in said if NEW.match(text)]
    places = [text for text in said if AFTER.match(text)]
    assert (len(files), len(places)) == ONE_FILE_ONE_LINE[name]
    if name != "add-an-encoder":
        assert all(text.count("\n") == 2 for text in places)  # the place, and one line
