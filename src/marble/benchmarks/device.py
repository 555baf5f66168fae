"""`marble bench device`, `marble doctor --gpu`: does a device compute what the CPU does, how fast, in how much room.

MARBLE on made-up bags: outputs and gradients against those of the CPU in float64, a training that is interrupted and
resumed, times and memory. The result is one JSON object, to paste into an issue.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from marble import devices
from marble.bags.bag import Bag, Level
from marble.benchmarks.measure import machine
from marble.files import publish_json
from marble.models import COMMON, BagModel, build
from marble.training.optim import Optimizer

SIZES = (1, 64, 65, 5_000, 100_000)
QUICK_SIZES = (1, 64, 65, 200)
DIM = 256
#: largest error of a float32 device, of the largest number of each tensor, that is no cause for concern
TOLERANCE = 1e-3


def run(
    json_path: str | Path | None = None, quick: bool = False, device: str = "auto", sizes: Sequence[int] | None = None
) -> dict[str, Any]:
    """Measure, print a table, and write JSON to `json_path` if given."""
    where = devices.choose(device)
    tried = tuple(sizes or (QUICK_SIZES if quick else SIZES))
    counts = ", ".join(f"{T:,}" for T in tried)
    Console().print(f"Comparing at {counts} tokens; the largest takes longest, most of it on the CPU")
    rows = [_compare(T, where) for T in tried]
    resumed = _resumes(where)
    worst = max(max(row["output_error"], row["gradient_error"]) for row in rows)
    result = {
        "benchmark": "device",
        "device": devices.describe(where),
        "machine": machine(),
        "torch": torch.__version__,
        "backend": _model().to(where).mixers[0][0].path(),
        "sizes": rows,
        "resumed_bit_for_bit": resumed,
        "right": worst < TOLERANCE and resumed,
    }
    _show(result)
    if json_path is not None:
        publish_json(json_path, result)
    return result


def bag_of(fine: int, dim: int = DIM) -> Bag:
    """Two nested levels: every coarse tile has up to four fine ones."""
    rng = torch.Generator().manual_seed(fine)
    places = torch.arange(fine)
    cells = torch.stack([places // 2 % 2, places // 4 * 2 + places % 2], dim=1)
    parent = places // 4
    coarse = torch.stack(
        [torch.zeros(int(parent[-1]) + 1, dtype=torch.int64), torch.arange(int(parent[-1]) + 1)], dim=1
    )
    features = [torch.randn(len(where), dim, generator=rng) for where in (coarse, cells)]
    return Bag(f"made-up-{fine}", [Level(features[0], coarse), Level(features[1], cells, parent, ratio=2)])


def _model() -> Any:
    torch.manual_seed(0)
    return build("marble", DIM, 2, levels=2)


def _pass(model: BagModel, bag: Bag) -> dict[str, Tensor]:
    """Logits, and the gradient of every weight."""
    model.zero_grad(set_to_none=True)
    out = model(bag)
    torch.autograd.backward(out.logits.square().sum())
    found = {"logits": out.logits.detach()}
    return found | {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def _compare(T: int, where: torch.device) -> dict[str, Any]:
    bag = bag_of(T)
    exact = _pass(_model().double(), bag.to(dtype=torch.float64))
    model, moved = _model().to(where), bag.to(where)
    _pass(model, moved)  # the first is for warming up
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
    began = time.perf_counter()
    found = {name: value.double().cpu() for name, value in _pass(model, moved).items()}  # waits for the device
    seconds = time.perf_counter() - began
    # A gradient that is next to nothing beside the others is rounding; it is measured against them.
    least = 1e-3 * max(float(value.abs().max()) for name, value in exact.items() if name != "logits")
    errors = {
        name: float((found[name] - value).abs().max()) / max(float(value.abs().max()), least)
        for name, value in exact.items()
    }
    peak = torch.cuda.max_memory_allocated(where) if where.type == "cuda" else None
    return {
        "tokens": T,
        "output_error": errors.pop("logits"),
        "gradient_error": max(errors.values()),
        "seconds_forward_backward": seconds,
        "peak_bytes": peak,
    }


def _resumes(where: torch.device) -> bool:
    """Whether two steps, and a step, a restart and a step, give the same bits."""
    bag = bag_of(200).to(where)
    weights = []
    for restart in (False, True):
        model = _model().to(where)
        optimizer = Optimizer(model, COMMON)
        for step in range(2):
            if restart and step == 1:
                state = {name: value.cpu() for name, value in optimizer.state().items()}
                kept = {name: value.cpu() for name, value in model.state_dict().items()}
                model = _model().to(where)
                model.load_state_dict(kept)
                optimizer = Optimizer(model, COMMON)
                optimizer.load_state(state)
            torch.autograd.backward(model(bag).logits.square().sum())
            optimizer.step(1e-3)
        weights.append([value.cpu() for value in model.state_dict().values()])
    return all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def _show(result: dict[str, Any]) -> None:
    table = Table(title=f"MARBLE on {result['device']} against float64 on the CPU")
    peaks = [f"{row['peak_bytes'] / 2**20:.0f}" for row in result["sizes"] if row["peak_bytes"] is not None]
    memory = ["peak MiB"] if peaks else []  # torch counts it on CUDA alone
    for column in ("tokens", "error of outputs", "error of gradients", "s, forward + backward", *memory):
        table.add_column(column, justify="right")
    for k, row in enumerate(result["sizes"]):
        errors = [f"{row[name]:.1e}" for name in ("output_error", "gradient_error")]
        table.add_row(f"{row['tokens']:,}", *errors, f"{row['seconds_forward_backward']:.3f}", *peaks[k : k + 1])
    console = Console()
    console.print(table)
    resumed = "gives the same bits" if result["resumed_bit_for_bit"] else "gives OTHER numbers"
    said = f"errors may be up to {TOLERANCE:g} of the largest number"
    verdict = f"right: {said}" if result["right"] else f"NOT right: {said}. Please report this with --json"
    console.print(f"The scan ran on the path '{result['backend']}'. A resumed training {resumed}.", soft_wrap=True)
    console.print(f"{result['device']} is {verdict}", soft_wrap=True)
