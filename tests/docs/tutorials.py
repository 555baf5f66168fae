"""Runs the tutorials as notebooks in folders for the moment: `python -m tests.docs.tutorials [--update] [NAME...]`.

A tutorial is a page of `docs/tutorials/`: its `python` and `bash` blocks are the cells. `--update` puts what the cells
printed into the `text` blocks below them (of many like lines the first and the last), and the pictures they made into
`docs/images/tutorials/`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from tests.docs.pages import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
IMAGES = ROOT / "docs" / "images" / "tutorials"
#: a cell, and the block with what it prints, where the page shows it
CELL = re.compile(r"^(```(?:bash|python)\n.*?^```\n)(\n```text\n.*?^```\n)?", re.M | re.S)
HEADER = """\
---
jupyter:
  kernelspec: { name: python3, language: python, display_name: Python 3 }
---

"""
COLUMNS = "128"
PICTURE_PX = 900
PICTURE_BYTES = 200_000
MOST_ALIKE = 5
TIMEOUT_S = 600


def notebook_of(text: str) -> Any:
    """A page as a notebook of Python; its `bash` blocks are `%%bash` cells, however many there are."""
    import jupytext

    return jupytext.reads(HEADER + text, fmt="md")


def execute(page: Path, folder: Path) -> Any:
    """Run a page's cells in `folder`; a cell that fails is an error that shows it. Returns the notebook."""
    from nbclient import NotebookClient

    notebook = notebook_of(page.read_text())
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    with _surroundings():
        client.execute()
    return notebook


@contextmanager
def _surroundings() -> Iterator[None]:
    """`marble` is that of this Python, it imports this tree, and it draws lines of one width."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": COLUMNS,
        "TTY_COMPATIBLE": "0",  # a notebook says FORCE_COLOR, which rich takes for a terminal
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def printed(notebook: Any) -> list[str]:
    """What every cell printed or returned, as text; what it said on standard error is left out."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(_text(output) for output in cell.outputs).strip("\n") for cell in cells]


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    return str(output.get("data", {}).get("text/plain", ""))


def shortened(lines: list[str]) -> list[str]:
    """Of many lines that begin alike but for numbers, the first and the last."""

    def beginning(line: str) -> str:
        return re.sub(r"\d+", "#", line.strip().partition(" ")[0])

    kept: list[str] = []
    for begins, group in groupby(lines, key=beginning):
        alike = list(group)
        worded = re.search(r"[a-zA-Z/]", begins) is not None  # rows of numbers are what a cell wants to show
        kept += [alike[0], "...", alike[-1]] if worded and len(alike) > MOST_ALIKE else alike
    return kept


def with_outputs(text: str, outputs: list[str]) -> str:
    """The page with its `text` blocks filled anew; cells without such a block stay without."""
    waiting = iter(outputs)

    def fill(found: re.Match[str]) -> str:
        lines = "\n".join(shortened([line.rstrip() for line in next(waiting).splitlines()]))
        return found[1] + (f"\n```text\n{lines}\n```\n" if found[2] else "")

    return CELL.sub(fill, text)


def _smaller(source: Path, target: Path) -> None:
    """A copy that a page can carry: at most 900 px wide and high, and of 256 colours where it is still too large."""
    from PIL import Image

    with Image.open(source) as picture:
        small = picture.convert("RGB")
    small.thumbnail((PICTURE_PX, PICTURE_PX))
    small.save(target, optimize=True)
    if target.stat().st_size > PICTURE_BYTES:
        small.quantize(256).save(target, optimize=True)


def main(arguments: list[str]) -> None:
    """Run all tutorials, or those named, and say how long each took."""
    update = "--update" in arguments
    names = [argument for argument in arguments if not argument.startswith("--")]
    for page in TUTORIALS:
        if names and page.stem not in names:
            continue
        began = monotonic()
        with TemporaryDirectory(prefix="marble-tutorial-") as folder:
            notebook = execute(page, Path(folder))
            if update:
                page.write_text(with_outputs(page.read_text(), printed(notebook)))
                IMAGES.mkdir(parents=True, exist_ok=True)
                for picture in sorted(Path(folder, "pictures").glob("*.png")):
                    _smaller(picture, IMAGES / picture.name)
        print(f"{page.stem}: {monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
