"""`marble bench mixers`: what a pass of two-level MARBLE costs with each mixer and order, and one of ABMIL, as ratios
to mamba2.

A prediction with mamba2 takes K such passes (8 unless said otherwise), one with `set` or with an order of its own takes
one; the ratios here are those of a single pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from marble.benchmarks.measure import available_bytes, interleaved, machine, peak_memory
from marble.benchmarks.model import DIM, PASSES, synthetic_bag
from marble.files import publish_json
from marble.models import build

SIZES = (8192, 32768, 262144)
QUICK_SIZES = (128, 256)
VARIANTS: dict[str, dict[str, Any]] = {
    "mamba2": {},
    "set": {"mixer": "set"},
    "mlp": {"mixer": "mlp"},
    "mamba2, hilbert": {"order": "hilbert"},
    "mamba2, both directions": {"directions": 2},
    "abmil": {},
}
#: tokens from which only the two linear-time mixers and ABMIL are compared, one turn each
LARGE = 100_000
MEMORY_SHARE = 0.6


def run(
    sizes: Sequence[int] = SIZES, json_path: str | Path | None = None, repeats: int = 3, quick: bool = False
) -> dict[str, Any]:
    """Measure, print a table, and write JSON to `json_path` if given; `quick` takes two small sizes once."""
    if quick:
        sizes, repeats = QUICK_SIZES, 1
    rows, left_out = [], []
    for T in sizes:
        for which in PASSES:
            memory: dict[str, int] = {}
            for name in ["mamba2", "set", "abmil"] if T >= LARGE else VARIANTS:
                if memory and 2 * memory["mamba2"] > MEMORY_SHARE * available_bytes():
                    left_out.append(f"{name}: {which} of {T} tokens may not fit in memory")
                    continue
                memory[name] = peak_memory(f"{__name__}:prepare", name, T, which, threads=torch.get_num_threads())
            cases = {name: prepare(name, T, which) for name in memory}
            seconds = interleaved(cases, 1 if T >= LARGE else repeats, warmup=0 if T >= LARGE else 1)
            rows += [
                {
                    "tokens": T,
                    "pass": which,
                    "variant": name,
                    "seconds": seconds[name],
                    "ratio": seconds[name] / seconds["mamba2"],
                    "kb_per_token": memory[name] / T / 1024,
                }
                for name in cases
            ]
    result = {"benchmark": "mixers", "machine": machine(), "dim": DIM, "rows": rows, "left_out": left_out}
    _print(result)
    if json_path is not None:
        publish_json(json_path, result)
    return result


def prepare(name: str, T: int, which: str) -> Callable[[], object]:
    """One pass of a variant over a bag of T fine tokens, warmed up on a tiny one."""
    torch.manual_seed(0)
    model = build("abmil" if name == "abmil" else "marble", DIM, 2, **VARIANTS[name]).eval()

    def one_pass(tokens: int) -> Callable[[], object]:
        bag = synthetic_bag(tokens)

        def forward() -> None:
            with torch.inference_mode():
                model(bag)

        def backward() -> None:
            torch.autograd.backward(model(bag).logits.sum())

        return forward if which == "forward" else backward

    one_pass(64)()
    return one_pass(T)


def _print(result: dict[str, Any]) -> None:
    table = Table(title=f"Two-level MARBLE, D = {DIM}, one pass")
    for heading in ("tokens", "pass", "variant", "seconds", "x mamba2", "KB per token"):
        table.add_column(heading, justify="left" if heading in ("pass", "variant") else "right")
    for row in result["rows"]:
        figures = (f"{row['seconds']:.3f}", f"{row['ratio']:.2f}", f"{row['kb_per_token']:.1f}")
        table.add_row(f"{row['tokens']:,}", row["pass"], row["variant"], *figures)
    console = Console()
    console.print(table)
    for line in result["left_out"]:
        console.print(f"left out: {line}")
