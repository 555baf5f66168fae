"""The tutorials run as they stand, and their pages show what they made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from nbformat import v4

import marble
from tests.docs.pages import ROOT, blocks
from tests.docs.test_what_is_named_exists import _check
from tests.docs.tutorials import (
    CELL,
    IMAGES,
    PICTURE_BYTES,
    TUTORIALS,
    execute,
    notebook_of,
    printed,
    shortened,
    with_outputs,
)

#: nbformat's makers of cells have no types
MAKE: Any = v4
PICTURE = re.compile(r"!\[[^\]]+\]\(\.\./images/tutorials/([\w-]+\.png)\)")
named = pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)


def test_there_are_three() -> None:
    assert [page.stem for page in TUTORIALS] == ["slides-to-heatmap", "survival", "trident-to-table"]


@named
def test_commands_and_flags_exist(page: Path) -> None:
    shell = [block.text for block in blocks(page) if block.language == "bash"]
    assert any("marble " in text for text in shell)
    assert [fault for text in shell for fault in _check(page.name, text, code=True)] == []


@named
def test_blocks_are_cells(page: Path) -> None:
    cells = [cell.source for cell in notebook_of(page.read_text()).cells if cell.cell_type == "code"]
    wanted = [block for block in blocks(page) if block.language in ("python", "bash")]
    shell = "%%bash\n"
    assert cells == [(shell if one.language == "bash" else "") + one.text.rstrip("\n") for one in wanted]
    for block in wanted:
        if block.language == "python":
            compile(block.text, page.name, "exec")


@named
def test_every_picture_is_made_by_the_page_and_is_small(page: Path) -> None:
    text = page.read_text()
    pictures = PICTURE.findall(text)
    assert [name for name in pictures if f"pictures/{name}" not in text] == []
    assert [name for name in pictures if (IMAGES / name).stat().st_size > PICTURE_BYTES] == []


def test_no_picture_is_left_over() -> None:
    shown = {
        name
        for page in [*TUTORIALS, ROOT / "README.md"]
        for name in re.findall(r"tutorials/([\w-]+\.png)", page.read_text())
    }
    assert {path.name for path in IMAGES.glob("*.png")} == shown


@named
def test_no_output_is_missing(page: Path) -> None:
    assert [cell for cell, shown in CELL.findall(page.read_text()) if shown == "\n```text\n```\n"] == []


def test_outputs_go_below_the_cells_that_show_theirs() -> None:
    page = "a\n\n```python\nx\n```\n\n```text\nold\n```\n\n```bash\ny\n```\n\nb\n\n```python\nz\n```\n\n```text\n```\n"
    said = {
        name: MAKE.new_output("stream", name=name, text=text)
        for name, text in (("stdout", "one  \n"), ("stderr", "no"))
    }
    cells = [
        MAKE.new_code_cell("x", outputs=[said["stdout"], said["stderr"]]),
        MAKE.new_code_cell("y", outputs=[said["stdout"]]),
        MAKE.new_code_cell("z", outputs=[MAKE.new_output("execute_result", data={"text/plain": "3"})]),
    ]
    filled = with_outputs(page, printed(MAKE.new_notebook(cells=cells)))
    assert filled == page.replace("old", "one").replace("```text\n```\n", "```text\n3\n```\n")


def test_many_like_lines_are_shortened() -> None:
    fits = [f"[{n}/9] fit {n}" for n in range(9)]
    numbers = [f"{n} 0.5" for n in range(9)]
    assert shortened(["", *fits, "P1 a", "P2 b", *numbers]) == ["", fits[0], "...", fits[-1], "P1 a", "P2 b", *numbers]


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    listed = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", text, re.M)}
    assert listed == set(marble.__all__) - {"__version__"}


@pytest.mark.slow
@named
def test_it_runs(page: Path, tmp_path: Path) -> None:
    notebook = execute(page, tmp_path)
    assert {path.name for path in (tmp_path / "pictures").glob("*.png")} == set(PICTURE.findall(page.read_text()))
    shown = [bool(shown) for _, shown in CELL.findall(page.read_text())]
    assert [text for text, wanted in zip(printed(notebook), shown, strict=True) if wanted and not text] == []
