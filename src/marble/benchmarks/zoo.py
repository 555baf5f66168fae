"""`marble bench zoo`: every model against the bare cost of its own matrix products, and the scans against plain loops.

Per model, size T (fine tokens, T/16 in the level above, as many levels as the model reads) and pass:

    seconds, bytes   of the model; "forward" as in a prediction, "forward+backward" as in a training step, with its loss
    products         seconds of the matrix products it ran in that pass, alone and in buffers made beforehand
    ratio            seconds / products: what a model pays beyond its products; high where most work is none

A model and its products take turns; medians; passes of many seconds once. Memory is measured in processes of its own.
A size at which a model would take too much time or memory, by what it took at the size before, is left out, and the
result says so. The JSON is written anew after every model; a run that was stopped goes on from it, and keeps what it
holds (delete the file to measure anew).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from marble.bags.augment import generator
from marble.bags.bag import Bag, Level
from marble.benchmarks.measure import available_bytes, interleaved, machine, peak_memory
from marble.benchmarks.zoo_gemms import RecordProducts, bare
from marble.benchmarks.zoo_scans import PASSES, SCAN_TARGET, measure_scans
from marble.files import publish, publish_json, read_json
from marble.memory import keep_freed
from marble.models import MODELS, BagModel, Output, build, model_options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIM, OUTPUTS, RATIO = 1024, 2, 4
SIZES, QUICK_SIZES = (1024, 4096, 16384), (256, 1024)
QUICK_MODELS = ("marble", "csmil")  # two and three levels
REPEATS, QUICK_REPEATS = 3, 1
SCAN_TOKENS, QUICK_SCAN_TOKENS = 4096, 256
MEMORY_SHARE = 0.6  # of the free memory
SECONDS_LIMIT = 120.0
LONG_SECONDS = 10.0  # a pass of this length is not repeated
VISIBLE_BYTES = 100_000  # a smaller rise drowns in the process's own


@dataclass(frozen=True)
class ModelCost:
    """One model at one size in one pass."""

    model: str
    tokens: int
    which: str
    seconds: float
    products_seconds: float
    ratio: float
    repeats: int
    products_gflop: float
    bytes: int
    kb_per_token: float


def run(json_path: str | Path | None = None, quick: bool = False, repeats: int = REPEATS) -> dict[str, Any]:
    """Measure, print two tables, and write JSON and, beside it, a plot if asked."""
    repeats = QUICK_REPEATS if quick else repeats
    names = QUICK_MODELS if quick else tuple(MODELS)
    about = {"benchmark": "zoo", "quick": quick, "machine": machine(), "dim": DIM, "repeats": repeats}
    about["freed_memory_kept"] = keep_freed()
    before = _measured_before(json_path, about)
    scans_of = QUICK_SCAN_TOKENS if quick else SCAN_TOKENS
    result: dict[str, Any] = about | {
        "models": [],
        "not_measured_yet": list(names),
        "scans": before.get("scans") or [asdict(row) for row in measure_scans(scans_of, repeats)],
        "scan_target": f">= {SCAN_TARGET:g}",
        "left_out": [],
    }
    known = [ModelCost(**row) for row in before.get("models", [])]
    rows: list[ModelCost] = []
    for place, name in enumerate(names, start=1):
        for which in PASSES:
            mine = {row.tokens: row for row in known if (row.model, row.which) == (name, which)}
            sizes = QUICK_SIZES if quick else SIZES
            rows += measure_model(name, which, sizes, repeats, result["left_out"], mine)
        result["models"] = [asdict(row) for row in rows]
        result["not_measured_yet"] = list(names[place:])
        if json_path is not None:
            publish_json(json_path, result)
    _print(result)
    if json_path is not None:
        publish(Path(json_path).with_suffix(".png"), png(plot(rows)))
    return result


def _measured_before(json_path: str | Path | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier run of the same kind on the same machine wrote; nothing if there is none."""
    if json_path is None or not Path(json_path).is_file():
        return {}
    found: dict[str, Any] = read_json(json_path)
    return found if all(found.get(key) == value for key, value in about.items()) else {}


# ---- the models ----------------------------------------------------------------------------------------------------


def synthetic_bag(tokens: int, levels: int) -> Bag:
    """A square of fine tiles, row by row; each level above has a sixteenth of the tiles."""
    rng = generator("bench-zoo", tokens)
    side = round(tokens**0.5)
    found: list[Level] = []
    for k in reversed(range(levels)):  # coarsest first
        wide = -(-side // RATIO**k)
        cells = torch.cartesian_prod(torch.arange(wide), torch.arange(wide))  # (T_k, 2)
        above = cells // RATIO
        parent = above[:, 0] * -(-wide // RATIO) + above[:, 1] if found else None
        features = torch.randn(len(cells), DIM, generator=rng)
        found.append(Level(features, cells, parent, RATIO if found else None))
    return Bag("bench", found)


def prepare(name: str, tokens: int, which: str) -> Callable[[], object]:
    """One pass of a freshly built model, warmed up on a tiny bag so that only this pass is measured."""
    torch.manual_seed(0)
    model = build(name, DIM, OUTPUTS)
    levels = int(model_options(name).get("levels", 2))
    one_pass = functools.partial(_predict if which == "forward" else _learn, model)
    one_pass(synthetic_bag(64, levels))
    return functools.partial(one_pass, synthetic_bag(tokens, levels))


def _predict(model: BagModel, bag: Bag) -> None:
    model.eval()
    with torch.no_grad():
        model(bag)


def _learn(model: BagModel, bag: Bag) -> None:
    model.train()
    torch.autograd.backward(_training_loss(model, model(bag), label=1))
    model.zero_grad(set_to_none=True)


def _training_loss(model: BagModel, out: Output, label: int) -> Tensor:
    """What a training step for `label` minimises: every stream, and the model's extra loss."""
    target = torch.tensor(label)
    loss = out.logits_weight * cross_entropy(out.logits, target)
    for side in out.side:
        loss = loss + side.weight * cross_entropy(side.logits, target)
    extra = model.extra_loss(out, label)
    return loss if extra is None else loss + extra


def measure_model(
    name: str, which: str, sizes: Sequence[int], repeats: int, left_out: list[str], known: Mapping[int, ModelCost]
) -> list[ModelCost]:
    """The model at every size it can be measured at, but for the `known` ones; cost is expected to grow linearly."""
    rows: list[ModelCost] = []
    for tokens in sorted(sizes):
        if tokens in known:
            rows.append(known[tokens])
            continue
        reason = too_much(rows[-1], tokens) if rows else None
        if reason is not None:
            left_out.append(f"{name}: {which} of {tokens} tokens {reason}")
            break
        taken = peak_memory(f"{__name__}:prepare", name, tokens, which, threads=torch.get_num_threads())
        one_pass = prepare(name, tokens, which)
        with RecordProducts() as recorded:
            began = time.perf_counter()
            one_pass()  # warms up, too
            turns = repeats if time.perf_counter() - began < LONG_SECONDS else 1
        seconds = interleaved({"model": one_pass, "products": bare(recorded.products)}, turns, warmup=0)
        rows.append(
            ModelCost(
                model=name,
                tokens=tokens,
                which=which,
                seconds=seconds["model"],
                products_seconds=seconds["products"],
                ratio=seconds["model"] / seconds["products"],
                repeats=turns,
                products_gflop=sum(product.flops * count for product, count in recorded.products.items()) / 1e9,
                bytes=taken,
                kb_per_token=taken / tokens / 1024,
            )
        )
    return rows


def too_much(known: ModelCost, tokens: int) -> str | None:
    """Why a size is left out, from what a smaller one took; None if it is not."""
    growth = tokens / known.tokens
    memory, limit = known.bytes * growth, MEMORY_SHARE * available_bytes()
    if memory > limit:
        return f"would take about {memory / 2**30:.1f} GiB, more than {limit / 2**30:.1f} GiB"
    if known.seconds * growth > SECONDS_LIMIT:
        return f"would take about {known.seconds * growth:.0f} s, more than {SECONDS_LIMIT:.0f} s"
    return None


# ---- what is shown -------------------------------------------------------------------------------------------------


def _print(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f"D = {DIM}: seconds (ratio to its own matrix products; MB)")
    sizes = sorted({row["tokens"] for row in result["models"]})
    for heading in ("model", "pass", *(f"{tokens} tokens" for tokens in sizes)):
        table.add_column(heading, justify="left" if heading in ("model", "pass") else "right")
    by_line: dict[tuple[str, str], dict[int, str]] = {}
    for row in result["models"]:
        cell = f"{row['seconds']:.3f} ({row['ratio']:.2f}; {row['bytes'] / 1e6:.0f})"
        by_line.setdefault((row["model"], row["which"]), {})[row["tokens"]] = cell
    for (name, which), cells in by_line.items():
        table.add_row(name, which, *(cells.get(tokens, "-") for tokens in sizes))
    console.print(table)
    scan_table = Table(title=f"Scans against a token-by-token loop (target {result['scan_target']})")
    for heading in ("scan", "tokens", "pass", "seconds", "loop", "times faster"):
        scan_table.add_column(heading, justify="right")
    for row in result["scans"]:
        figures = (f"{row['seconds']:.3f}", f"{row['loop_seconds']:.3f}", f"{row['ratio']:.1f}")
        scan_table.add_row(row["scan"], str(row["tokens"]), row["which"], *figures)
    console.print(scan_table)
    for line in result["left_out"]:
        console.print(f"left out: {line}")


def plot(rows: Sequence[ModelCost]) -> Figure:
    """Time, ratio to the products, and memory against tokens; one line per model."""
    import matplotlib as mpl  # here, because every process that measures memory imports this module
    from matplotlib.figure import Figure

    names, sizes = list(dict.fromkeys(row.model for row in rows)), sorted({row.tokens for row in rows})
    panels: dict[str, Callable[[ModelCost], float]] = {
        "seconds": lambda row: row.seconds,
        "ratio to its matrix products": lambda row: row.ratio,
        "peak memory above the bag, MB": lambda row: max(row.bytes, VISIBLE_BYTES) / 1e6,
    }
    figure = Figure(figsize=(11, 11), layout="constrained")
    axes = figure.subplots(len(panels), len(PASSES), sharex=True, sharey="row")
    for line, (label, value) in enumerate(panels.items()):
        for column, which in enumerate(PASSES):
            panel = axes[line][column]
            for place, name in enumerate(names):
                mine = [row for row in rows if row.model == name and row.which == which]
                colour = mpl.colormaps["tab20"](place % 20)
                panel.plot([row.tokens for row in mine], [value(row) for row in mine], "o-", color=colour, label=name)
            panel.set(title=which, xscale="log", yscale="log", ylabel=label, xlabel="fine tokens")
            panel.set_xticks(sizes, sizes)
            panel.set_xticks([], minor=True)
            panel.label_outer()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return figure


def png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
