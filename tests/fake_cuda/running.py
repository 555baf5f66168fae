"""Runs the fake-CUDA job in a process of its own, and writes the table of `docs/how-to/gpu.md` from what it counts.

python -m tests.fake_cuda.running
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from marble.models import MODELS
from marble.native.build import compiler
from tests.docs.pages import ROOT

HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent
PAGE = ROOT / "docs" / "how-to" / "gpu.md"
BEGIN, END = "<!-- the table, made by `python -m tests.fake_cuda.running` -->", "<!-- end of the table -->"
#: of a row: model, tokens, kernels of a step, host syncs of a step, of a prediction and of explanations
ROW = re.compile(r"^\| `(?P<model>[^`]+)` \| (?P<tokens>[\d,]+) \+ [\d,]+ \|.*\|$", re.MULTILINE)
#: models whose launches could grow with the tokens, at the size of a slide
LONG = ("mambamil@16384", "srmambamil@16384", "2dmambamil@16384")


class DoesNotBuildError(Exception):
    """The headers of this torch do not fit the device that does nothing."""


def counted(models: Sequence[str], folder: Path) -> dict[str, Any]:
    """What models ask of the device; the library of the fake device is built into `folder`."""
    made = folder / "fakecuda.so"
    built = subprocess.run(
        [
            str(compiler()), "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{TORCH / 'include'}",
            str(HERE / "fakecuda.cpp"), "-o", str(made), f"-L{TORCH / 'lib'}", "-lc10", "-ltorch_cpu",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode != 0:
        raise DoesNotBuildError(built.stderr[-300:])
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    surroundings = os.environ | {"LD_PRELOAD": str(made), "LD_LIBRARY_PATH": str(TORCH / "lib"), "PYTHONPATH": paths}
    run = subprocess.run(
        [sys.executable, "-m", "tests.fake_cuda.job", *models],
        capture_output=True, text=True, check=False, env=surroundings, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    counts: dict[str, Any] = json.loads(run.stdout)
    return counts


def rows(found: Mapping[str, Any]) -> dict[str, str]:
    """A row of the table for every model, by its name and its tokens."""
    lines = {}
    for asked, pieces in found.items():
        name, fine = asked.partition("@")[0], pieces["tokens"]
        syncs = [sum(pieces[piece]["syncs"].values()) for piece in ("step", "infer", "explain")]
        kernels = f"{pieces['step']['kernels']:,}"
        lines[f"{name} {fine:,}"] = (
            f"| `{name}` | {fine:,} + {fine // 4:,} | {kernels} | {' | '.join(map(str, syncs))} |"
        )
    return lines


def table(found: Mapping[str, Any]) -> str:
    """The whole table, as Markdown."""
    head = "| model | tokens | kernels of a step | host syncs: a step | a prediction | explanations |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows(found).values()])


def rows_of_page() -> dict[str, str]:
    """The rows as the page has them, by model and tokens."""
    inside = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return {f"{match['model']} {match['tokens']}": match[0] for match in ROW.finditer(inside)}


def write() -> None:
    """Count all models, and put the table into the page."""
    with TemporaryDirectory(prefix="marble-fakecuda-") as folder:
        made = table(counted([*MODELS, *LONG], Path(folder)))
    text = PAGE.read_text()
    whole = rf"{re.escape(BEGIN)}.*?{re.escape(END)}"
    PAGE.write_text(re.sub(whole, lambda _: f"{BEGIN}\n{made}\n{END}", text, flags=re.DOTALL))


if __name__ == "__main__":
    write()
