"""`marble bench zoo --against torchmil`: four models against torchmil's own classes of the same papers.

One process, one bag, the same threads, float32; ours and theirs take turns, medians; ratio = ours / theirs, wanted
<= 1. "forward" is a prediction, "forward+backward" a training step with the loss of its paper, but for the optimiser.
Weights differ, the products do not: each row says how many GFLOP of matrix products either side really ran. torchmil
makes one logit per bag and takes a batch of bags (here of one), so ours has one output and the same binary loss too.

    abmil      ABMIL(att_dim=128, gated=True) behind the extractor Linear(D, 512) - ReLU - Dropout(0.25)
    clam-sb    CLAM_SB(att_dim=256, gated=True, k_sample=8) behind the extractor Linear(D, 512) - ReLU. Its attention
               has no dropout, so ours has none; it always takes the other class's instances as well, so ours has
               `subtyping`, and two outputs, since ours has an instance classifier for each
    dsmil      DSMIL(att_dim=128, nonlinear_q=True, nonlinear_v=False), no extractor
    transmil   TransMIL(att_dim=512, n_heads=8, n_landmarks=256, pinv_iterations=6, use_mlp=False) behind the extractor
               Linear(D, 512) - ReLU. Its attention has neither the paper's projection of the heads nor the convolution
               of the values, and no option adds them: ours does more here. Ours has no dropout, as theirs has none
               without an MLP

torchmil is no dependency; it is imported here alone.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from marble.bags.augment import generator
from marble.bags.bag import Bag, Level
from marble.benchmarks.measure import interleaved, machine
from marble.benchmarks.zoo_gemms import RecordProducts
from marble.benchmarks.zoo_scans import PASSES
from marble.errors import UnavailableError
from marble.files import publish_json
from marble.models import BagModel, Output, build

Peer = Literal["torchmil"]

DIM, HIDDEN = 1024, 512
SIZES, QUICK_SIZES = (2048, 8192, 16384), (256,)
REPEATS, QUICK_REPEATS = 7, 1
TARGET = 1.0  # ours / theirs
LABEL = 1


@dataclass(frozen=True)
class Pair:
    """One paper: our model, and the class of torchmil's that does the same products."""

    outputs: int
    ours: Mapping[str, Any]
    their_class: str
    theirs: Mapping[str, Any]
    embedded: bool = True  # behind an extractor Linear - ReLU, as ours has it inside
    embedding_dropout: float = 0.0


PAIRS: dict[str, Pair] = {
    "abmil": Pair(1, {"dropout": 0.25}, "ABMIL", {"att_dim": 128, "gated": True}, embedding_dropout=0.25),
    "clam-sb": Pair(
        2, {"dropout": 0.0, "subtyping": True}, "CLAM_SB", {"att_dim": 256, "gated": True, "k_sample": 8}
    ),
    "dsmil": Pair(1, {}, "DSMIL", {"att_dim": 128, "nonlinear_q": True, "nonlinear_v": False}, embedded=False),
    "transmil": Pair(
        1, {"dropout": 0.0}, "TransMIL",
        {"att_dim": HIDDEN, "n_heads": 8, "n_landmarks": 256, "pinv_iterations": 6, "use_mlp": False},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class PeerCost:
    """One model at one size in one pass, beside its peer."""

    model: str
    tokens: int
    which: str
    seconds: float
    their_seconds: float
    ratio: float
    products_gflop: float
    their_products_gflop: float
    met: bool


def run(
    json_path: str | Path | None = None, quick: bool = False, repeats: int = REPEATS, against: Peer = "torchmil"
) -> dict[str, Any]:
    """Measure, print a table and a line per miss, and write JSON if asked."""
    classes = peer_classes(against)
    repeats = QUICK_REPEATS if quick else repeats
    rows = [
        measure_pair(classes, name, tokens, which, repeats)
        for name in PAIRS
        for tokens in (QUICK_SIZES if quick else SIZES)
        for which in PASSES
    ]
    result: dict[str, Any] = {
        "benchmark": "zoo-peers", "quick": quick, "machine": machine(), "dim": DIM, "repeats": repeats,
        "against": against, "version": _version(against), "target": f"<= {TARGET:g}",
        "rows": [asdict(row) for row in rows], "misses": misses(rows, against),
    }  # fmt: skip
    _print(result)
    if json_path is not None:
        publish_json(json_path, result)
    return result


def peer_classes(against: Peer) -> Any:
    """The module that holds the peer's models; one line if it is not here or does not work."""
    try:
        return importlib.import_module(f"{against}.models")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == against:
            raise UnavailableError(
                f"{against} is not installed", hint=f"Install it with pip install {against}"
            ) from None
        raise UnavailableError(
            f"{against} is installed but lacks '{error.name}'", hint=f"Install it anew with pip install {against}"
        ) from None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # importable, but not installed by a package manager
        return None


# ---- the passes ------------------------------------------------------------------------------------------------------


def measure_pair(classes: Any, name: str, tokens: int, which: str, repeats: int) -> PeerCost:
    """One model and its peer, taking turns on the same bag."""
    bag = bag_of(tokens)
    cases = {"ours": our_pass(name, bag, which), "theirs": their_pass(classes, name, bag, which)}
    gflop = {side: _gflop(one_pass) for side, one_pass in cases.items()}  # warms up, too
    seconds = interleaved(cases, repeats, warmup=0)
    ratio = seconds["ours"] / seconds["theirs"]
    return PeerCost(
        model=name,
        tokens=tokens,
        which=which,
        seconds=seconds["ours"],
        their_seconds=seconds["theirs"],
        ratio=ratio,
        products_gflop=gflop["ours"],
        their_products_gflop=gflop["theirs"],
        met=ratio <= TARGET,
    )


def bag_of(tokens: int) -> Bag:
    """One level of exactly this many tiles, row by row; the last row may be short."""
    wide = isqrt(tokens - 1) + 1
    cells = torch.cartesian_prod(torch.arange(wide), torch.arange(wide))[:tokens]  # (T, 2)
    features = torch.randn(tokens, DIM, generator=generator("bench-zoo-peers", tokens))
    return Bag("bench", [Level(features, cells)])


def our_pass(name: str, bag: Bag, which: str) -> Callable[[], object]:
    """A prediction or a training step of ours."""
    torch.manual_seed(0)
    pair = PAIRS[name]
    model = build(name, DIM, pair.outputs, **pair.ours).train(which != "forward")

    def learn() -> None:
        torch.autograd.backward(_our_loss(model, model(bag)))
        model.zero_grad(set_to_none=True)

    return partial(_without_gradients, model, bag) if which == "forward" else learn


def _our_loss(model: BagModel, out: Output) -> Tensor:
    """Every stream's loss and the model's extra one: binary of one logit, softmax of two."""

    def of(logits: Tensor) -> Tensor:
        if model.outputs == 1:
            return binary_cross_entropy_with_logits(logits, torch.full_like(logits, LABEL))
        return cross_entropy(logits, torch.tensor(LABEL))

    loss = out.logits_weight * of(out.logits)
    for side in out.side:
        loss = loss + side.weight * of(side.logits)
    extra = model.extra_loss(out, LABEL)
    return loss if extra is None else loss + extra


def their_pass(classes: Any, name: str, bag: Bag, which: str) -> Callable[[], object]:
    """A prediction or a training step of theirs; a step minimises the sum of the losses the class itself returns."""
    torch.manual_seed(0)
    pair = PAIRS[name]
    options = dict(pair.theirs)
    if pair.embedded:
        options["feat_ext"] = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.ReLU(), nn.Dropout(pair.embedding_dropout))
    model: Any = getattr(classes, pair.their_class)(in_shape=(DIM,), **options).train(which != "forward")
    batch = bag.finest.features[None]  # (1, T, D)
    label = torch.full((1,), float(LABEL))

    def learn() -> None:
        _, losses = model.compute_loss(label, batch)
        torch.autograd.backward(sum(losses.values()))
        model.zero_grad(set_to_none=True)

    return partial(_without_gradients, model, batch) if which == "forward" else learn


def _without_gradients(model: nn.Module, what: Bag | Tensor) -> None:
    with torch.no_grad():
        model(what)


def _gflop(one_pass: Callable[[], object]) -> float:
    with RecordProducts() as recorded:
        one_pass()
    return float(sum(product.flops * count for product, count in recorded.products.items())) / 1e9


# ---- what is shown ---------------------------------------------------------------------------------------------------


def misses(rows: list[PeerCost], against: str) -> list[str]:
    """A line for every ratio beyond the target."""
    return [
        f"{row.model}: {row.which} of {row.tokens:,} tokens takes {row.ratio:.2f} x {against}'s (target <= {TARGET:g})"
        for row in rows
        if not row.met
    ]


def _print(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f"D = {DIM}: ours against {result['against']} (target {result['target']})")
    for heading in ("model", "tokens", "pass", "ours, s", "theirs, s", "ratio", "GFLOP ours", "theirs"):
        table.add_column(heading, justify="left" if heading in ("model", "pass") else "right")
    for row in result["rows"]:
        figures = (f"{row['seconds']:.4f}", f"{row['their_seconds']:.4f}", f"{row['ratio']:.2f}",
                   f"{row['products_gflop']:.2f}", f"{row['their_products_gflop']:.2f}")  # fmt: skip
        table.add_row(row["model"], f"{row['tokens']:,}", row["which"], *figures)
    console.print(table)
    for line in result["misses"]:
        console.print(f"missed: {line}", soft_wrap=True)
