"""Write the tables of docs/reference/performance.md from benchmarks/results/*.json, so no figure is typed by hand.

marble bench model --json benchmarks/results/model.json    (likewise extract, train, zoo)
python benchmarks/render_docs.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marble import files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "reference" / "performance.md"
INTRODUCTION = """\
Measured by `marble bench`, in one process, taking turns, medians; ratios are what counts. The JSON behind the tables
lies in `benchmarks/results/`; `python benchmarks/render_docs.py` writes this page from it."""
SHORTFALLS = """\
## What is slower or not measured

The table of the model was measured before the scan's elementwise work was moved into the cache, chunk by chunk; it has
not been measured again on a quiet machine. Forward alone misses its target of 0.9 times the bare products as written,
training misses the target of 4 times the speed of transformers, and the selective scan of the Mamba-1 baselines misses
its target of 5 times the speed of a token-by-token loop. Peers were not measured at 32k tokens, nothing at 256k, and
neither CUDA nor MPS. The growth exponent rests on two sizes."""


def main() -> None:
    parts = ["# Performance", INTRODUCTION]
    for name, render in (("model", model), ("train", train), ("extract", extract), ("zoo", zoo)):
        path = RESULTS / f"{name}.json"
        if path.exists():
            parts += render(json.loads(path.read_text()))
    parts.append(SHORTFALLS)
    files.publish(PAGE, "\n\n".join(parts) + "\n")


def model(result: dict[str, Any]) -> list[str]:
    memory = {(row["model"], row["tokens"], row["pass"]): row["kb_per_token"] for row in result["memory"]}
    rows = []
    for row in result["times"]:
        ratio = row["ratio"]
        peer = f"{ratio['transformers'] / ratio['marble']:.1f} x" if "transformers" in ratio else "not measured"
        kilobytes = memory.get(("marble", row["tokens"], row["pass"]))
        rows.append(
            [f"{row['tokens']:,}", row["pass"], f"{row['seconds']['marble']:.2f} s", f"{ratio['marble']:.2f}",
             f"{ratio['products by algebra']:.2f}", peer, "" if kilobytes is None else f"{kilobytes:.1f}"]
        )  # fmt: skip
    header = ["fine tokens", "pass", "MARBLE", "x products as written", "products after algebra"]
    header += ["faster than transformers", "KB per token"]
    growth = ", ".join(f"{which}: tokens^{value:.2f}" for which, value in result["growth_exponent"].items())
    text = f"{_machine(result)} Two levels, D = 1024, float32. Growth: {growth}."
    if result["left_out"]:
        text += f" Left out: {'; '.join(result['left_out'])}."
    return ["## The model", text, _table(header, rows)]


def train(result: dict[str, Any]) -> list[str]:
    rows = [[key, f"{value:.4g}" if isinstance(value, float) else str(value)]
            for key, value in result.items() if isinstance(value, int | float | str)]  # fmt: skip
    return ["## A training epoch", "Share of the epoch outside the model's forward and backward (target 0.15).",
            _table(["what", "value"], rows)]  # fmt: skip


def extract(result: dict[str, Any]) -> list[str]:
    rows = [[row["what"], f"{row['tiles']:,}", f"{row['ratio']:.2f}", row["target"], "yes" if row["met"] else "no"]
            for row in result["rows"]]  # fmt: skip
    return ["## Extraction", _table(["what", "tiles or tokens", "ratio", "target", "met"], rows)]


def zoo(result: dict[str, Any]) -> list[str]:
    rows = [
        [row["what"], row["pass"], f"{row['ratio']:.1f} x"]
        for row in result.get("scans", [])
        if all(key in row for key in ("what", "pass", "ratio"))
    ]
    return (
        ["## Scans against token-by-token loops, 4,096 tokens", _table(["scan", "pass", "faster"], rows)]
        if rows
        else []
    )


def _machine(result: dict[str, Any]) -> str:
    return "Machine: " + ", ".join(f"{key} {value}" for key, value in result["machine"].items()) + "."


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
