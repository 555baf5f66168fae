"""Write the tables of docs/reference/performance.md from benchmarks/results/*.json, so no figure is typed by hand.

marble bench model --json benchmarks/results/model.json    (likewise mixers, extract, train, zoo, cluster)
marble bench zoo --against torchmil --json benchmarks/results/zoo_peers.json
python benchmarks/render_docs.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marble import files
from marble.benchmarks.zoo import ModelCost, plot, png

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ZOO_PLOT = "zoo.png"
PAGE = ROOT / "docs" / "reference" / "performance.md"
INTRODUCTION = """\
Measured by `marble bench`, in one process, taking turns, medians; ratios are what counts. The JSON behind the tables
lies in `benchmarks/results/`; `python benchmarks/render_docs.py` writes this page from it. On Linux freed memory is
kept for the next tensor, as fits keep it: without that, a training step of MambaMIL or SRMambaMIL on 16,384 tokens
takes 1.6 to 2.2 times as long, and half to two thirds of the memory; one of MARBLE a tenth longer, in the
same memory."""
NOT_MEASURED = """\
## Not measured

CUDA, MPS and the `mamba_ssm` kernels: no such machine was at hand;
[On a GPU](../how-to/gpu.md) says what was checked.

The tables are of one kind of quiet machine with AVX-512, but for those of mixers and of every model, which are older,
of a machine with AVX2. The model's times of 256 to 8,192 tokens were taken a day after its memory, growth and larger
sizes, on code that multiplies by whole halves of phi, which has not changed since; torchmil, an epoch, extraction and
workers are of commit dc1ee0e. On the newer machine,
with freed memory kept, MambaMIL takes 1.36 of its products in a prediction on 16,384 tokens and 1.48 in a training
step, SRMambaMIL 1.67 and 2.13 (3 turns; at most 2 was aimed at). Since, SRMambaMIL's branches share one gate: a step
takes 1.71 of its products (3 turns, two threads, quiet)."""


def main() -> None:
    parts = ["# Performance", INTRODUCTION]
    for name, render in (("model", model), ("mixers", mixers), ("zoo", zoo), ("zoo_peers", zoo_peers), ("train", train),
                         ("extract", extract), ("cluster", cluster)):  # fmt: skip
        path = RESULTS / f"{name}.json"
        if path.exists():
            parts += render(json.loads(path.read_text()))
    parts.append(NOT_MEASURED)
    files.publish(PAGE, "\n\n".join(parts) + "\n")


def model(result: dict[str, Any]) -> list[str]:
    memory = {(row["model"], row["tokens"], row["pass"]): row["kb_per_token"] for row in result["memory"]}
    rows = []
    for row in result["times"]:
        for what, seconds in row["seconds"].items():
            kilobytes = memory.get((what, row["tokens"], row["pass"]))
            size = "" if kilobytes is None else f"{kilobytes:.1f}"
            rows.append([f"{row['tokens']:,}", row["pass"], what, f"{seconds:.3f}", f"{row['ratio'][what]:.2f}", size])
    text = (
        f"{_machine(result)} Two levels, D = 1024, float32. Memory that is kept helps the torch path of transformers"
        " most: without it that takes about three times as long, which the targets beside it were set against."
    )
    if result["left_out"]:
        text += f" Left out: {'; '.join(result['left_out'])}."
    few, growth = result["small_bags"], result["growth"]
    grown = [
        [f"{row['tokens']:,}", row["pass"], f"{row['seconds']:.2f}", f"{row['bytes'] / row['tokens'] / 1024:.1f}",
         f"{row['bytes'] / 2**30:.2f}"] for row in [*growth["rows"], *(result["million"] or ())]
    ]  # fmt: skip
    return [
        "## The model",
        text,
        _targets(model_targets(result)),
        _table(["fine tokens", "pass", "what", "seconds", "x products as written", "KB per token"], rows),
        "### Up to the largest slides",
        _table(["fine tokens", "pass", "seconds", "KB per token", "GiB"], grown),
        "Time grows as "
        + ", ".join(f"tokens^{value:.2f} ({which})" for which, value in growth["exponent"].items())
        + ".",
        f"{few['bags']} bags of 100 to 500 tokens, one by one: {few['ratio']:.2f} x the products of all at once.",
    ]


def model_targets(result: dict[str, Any]) -> list[list[str]]:
    """What was wanted of the model, what was found."""
    both = ("forward", "forward+backward")
    times = {(row["tokens"], row["pass"]): row["ratio"] for row in result["times"]}
    memory = {(row["tokens"], row["pass"]): row["kb_per_token"] for row in result["memory"] if row["model"] == "marble"}
    large = {(row["tokens"], row["pass"]): row["bytes"] for row in result["growth"]["rows"]}
    rows = [
        _at_most(f"{both[1]}, {tokens:,} tokens, x products as written", times[tokens, both[1]]["marble"], 0.9)
        for tokens in (256, 512, 2048)
    ]
    for tokens in (8192, 32768):
        for which, most in zip(both, (0.9, 0.65)):
            name = f"{which}, {tokens:,} tokens, x products as written"
            rows.append(_at_most(name, times[tokens, which]["marble"], most))
        for which in both:
            if "transformers" in (ratio := times[tokens, which]):
                name = f"{which}, {tokens:,} tokens, times faster than transformers"
                rows.append(_at_least(name, ratio["transformers"] / ratio["marble"], 4))
    rows.append(_at_most("training, KB per token, 8,192 tokens", memory[8192, both[1]], 60))
    rows.append(_at_most("inference, KB per token, 8,192 tokens", memory[8192, both[0]], 12))
    rows.append(_at_most("inference, KB per token, 262,144 tokens", large[262144, both[0]] / 262144 / 1024, 2))
    rows.append(_at_most("training on 262,144 tokens, GiB", large[262144, both[1]] / 2**30, 16))
    for row in result["million"] or ():
        name = f"{row['pass']} of {row['tokens']:,} tokens of a mapped bag, GiB above it"
        rows.append(_at_most(name, row["bytes"] / 2**30, 2 if row["pass"] == both[0] else 4))
    rows += [_at_most(f"growth exponent, {w}", v, 1.05) for w, v in result["growth"]["exponent"].items()]
    rows.append(_at_most("small bags, x products of all at once", result["small_bags"]["ratio"], 1.6))
    return rows


def train(result: dict[str, Any]) -> list[str]:
    seconds = result["seconds"]
    parts = ("waiting", "forward", "loss", "backward", "optimiser", "rest")
    rows = [[part, f"{seconds[part]:.3f}", f"{seconds[part] / seconds['epoch']:.1%}"] for part in parts]
    steps = [
        [f"{row['tokens']:,}", f"{1000 * row['paper']:.1f}", f"{1000 * row['small']:.1f}",
         f"{row['times_cheaper']:.1f}", ">= 10", "yes" if row["met"] else "no"] for row in result["small_step"]
    ]  # fmt: skip
    about = (
        f"{result['train_bags']} bags of {result['tokens']:,} fine tokens, D = {result['dim']}: outside forward and"
        f" backward {result['overhead']:.1%} of the epoch (target {result['target']}), with the checkpoint of so small"
        f" an epoch {result['overhead_with_checkpoint']:.1%}."
    )
    return [
        "## A training epoch",
        about,
        _table(["part", "seconds", "share"], rows),
        "A step of the recipe for small cohorts against one of the paper's, on bags as small cohorts have them:",
        _table(["fine tokens", "paper, ms", "small, ms", "times cheaper", "target", "met"], steps),
    ]


def mixers(result: dict[str, Any]) -> list[str]:
    memory = {(row["tokens"], row["pass"]): row["kb_per_token"] for row in result["rows"] if row["variant"] == "mamba2"}
    rows = []
    for row in result["rows"]:
        size, least = row["kb_per_token"], memory[row["tokens"], row["pass"]]
        room = ["not measured", ""] if size is None else [f"{size:.1f}", f"{size / least:.1f}"]
        head = [f"{row['tokens']:,}", row["pass"], row["variant"]]
        rows.append([*head, f"{row['seconds']:.3f}", f"{row['ratio']:.2f}", *room])
    return [
        "### Mixers",
        "One pass at D = 1024. A prediction takes one pass with `set`, `mlp` or an order of its own, and as many as"
        " there are orders (8 unless said otherwise) with mamba2."
        + (f" Left out: {'; '.join(result['left_out'])}." if result["left_out"] else ""),
        _table(["fine tokens", "pass", "what", "seconds", "x mamba2", "KB per token", "x mamba2"], rows),
    ]


def cluster(result: dict[str, Any]) -> list[str]:
    rows = [[row["way"], f"{row['slide_s']:.2f}", f"{row['start_s']:.1f}", f"{row['item_ms']:.2f}"]
            for row in result["rows"]]  # fmt: skip
    about = (
        f"Drawn slides through `extract` on two cores: one worker to two is {result['speed_up']:.2f} times as fast on a"
        f" cluster of this machine and {result['speed_up_of_processes']:.2f} times with processes; a slide on two"
        f" workers of the cluster takes {result['against_processes']:.2f} of its time with two processes."
    )
    return [
        "## Workers",
        about,
        _table(["workers", "s per slide", "s until they stand", "ms per item without work"], rows),
    ]


def extract(result: dict[str, Any]) -> list[str]:
    rows = [[row["what"], f"{row['tiles']:,}", f"{row['ratio']:.2f}", row["target"], "yes" if row["met"] else "no"]
            for row in result["rows"]]  # fmt: skip
    return ["## Extraction", _table(["what", "tiles or tokens", "ratio", "target", "met"], rows)]


def zoo(result: dict[str, Any]) -> list[str]:
    files.publish(ROOT / "docs" / "images" / ZOO_PLOT, png(plot([ModelCost(**row) for row in result["models"]])))
    rows = [
        [row["model"], f"{row['tokens']:,}", row["which"], f"{row['seconds']:.3f}", f"{row['ratio']:.2f}",
         f"{row['kb_per_token']:.1f}"] for row in result["models"]
    ]  # fmt: skip
    scans = [
        [row["scan"], row["which"], f"{row['seconds']:.3f}", f"{row['loop_seconds']:.3f}", f"{row['ratio']:.1f}",
         result["scan_target"], "yes" if row["met"] else "no"] for row in result["scans"]
    ]  # fmt: skip
    tokens = result["scans"][0]["tokens"]
    return [
        "## Every model",
        "Each at its default size, D = 1024, two classes, against the bare cost of its own matrix products."
        + ("" if result.get("freed_memory_kept") else " Measured before freed memory was kept.")
        + (f" Left out: {'; '.join(result['left_out'])}." if result["left_out"] else ""),
        _table(["model", "tokens", "pass", "seconds", "x its products", "KB per token"], rows),
        f"![Time, ratio and memory of every model against tokens](../images/{ZOO_PLOT})",
        f"### Scans against token-by-token loops, {tokens:,} tokens",
        _table(["scan", "pass", "seconds", "loop", "times faster", "target", "met"], scans),
    ]


def zoo_peers(result: dict[str, Any]) -> list[str]:
    rows = [
        [row["model"], f"{row['tokens']:,}", row["which"], f"{row['seconds']:.4f}", f"{row['their_seconds']:.4f}",
         f"{row['ratio']:.2f}", f"{row['products_gflop']:.2f}", f"{row['their_products_gflop']:.2f}",
         "yes" if row["met"] else "no"] for row in result["rows"]
    ]  # fmt: skip
    peer = f"{result['against']} {result['version']}" if result["version"] else result["against"]
    said = "Every target was met."
    if result["misses"]:
        said = "Missed:\n\n" + "\n".join(f"- {line}" for line in result["misses"])
    about = (
        f"{_machine(result)} Four models beside {result['against']}'s classes of the same papers on the same bag, one"
        f" level, D = {result['dim']}, float32; ratio is ours / theirs, target {result['target']}. The docstring of"
        " `marble.benchmarks.zoo_peers` says which options make them do the same products."
    )
    return [
        f"### Against {peer}",
        about,
        _table(["model", "tokens", "pass", "ours, s", "theirs, s", "ratio", "GFLOP ours", "theirs", "met"], rows),
        said,
    ]


def _at_most(what: str, found: float, most: float) -> list[str]:
    return [what, f"{found:.2f}", f"<= {most:g}", "yes" if found <= most else "no"]


def _at_least(what: str, found: float, least: float) -> list[str]:
    return [what, f"{found:.2f}", f">= {least:g}", "yes" if found >= least else "no"]


def _targets(rows: list[list[str]]) -> str:
    return _table(["what", "measured", "target", "met"], rows)


def _machine(result: dict[str, Any]) -> str:
    return "Machine: " + ", ".join(f"{key} {value}" for key, value in result["machine"].items()) + "."


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
