"""`marble bench model`: two-level MARBLE against the matrix products it is made of, and against its peers.

Per size T (fine tokens; T/16 coarse ones) and pass, in one process, taking turns:

    products as written   every matrix product of the equations, and nothing else
    products by algebra   the same after fusion by parts, composed projection and pooled readout
    marble                the model, by the fastest path of this machine (`backend` in the result)
    marble, torch path    the model without the compiled kernel
    transformers          the equations as written, with the Mamba-2 torch path of Hugging Face transformers
    abmil, transmil       gated ABMIL and TransMIL on the fine tokens

A peer that is not installed, or that would not fit in memory at a size, is left out, and the result says so. Then come
the ends of the scale (`scaling`, `million`): growth up to the largest bags, and many small ones.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from marble.bags.augment import generator, shuffled
from marble.bags.bag import Bag, Level
from marble.benchmarks import million, scaling
from marble.benchmarks.measure import available_bytes, interleaved, machine, peak_memory
from marble.encoders.torchvision_guard import import_timm
from marble.errors import InputError, UnavailableError
from marble.files import publish_json
from marble.models import BagModel, build
from marble.models.base import Output
from marble.models.ssm.ssd import Mamba2, block_shape, choose_backend
from marble.models.zoo.marble import Marble
from marble.models.zoo.marble_fast import composing_pays

DIM = 1024
SIZES = (256, 512, 2048, 8192, 32768)
QUICK_SIZES = (128, 256)
QUICK_MILLION = 2048
PASSES = ("forward", "forward+backward")
TORCH_PATH = "marble, torch path"
MODELS = ("marble", TORCH_PATH, "transformers", "abmil", "transmil")
#: part of the free memory that a peer may be expected to take
MEMORY_SHARE = 0.6
#: tokens from which passes take so long that they need no warming up, and one turn less
LARGE = 32768

Product = tuple[int, int, int]  # (m, k, n): (m, k) times (k, n)


def run(
    sizes: Sequence[int] = SIZES,
    json_path: str | Path | None = None,
    repeats: int = 3,
    threads: int | None = None,
    peers: bool = True,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure, print a table, and write JSON to `json_path` if given; `quick` takes two small sizes once."""
    large: Sequence[int] = scaling.SIZES
    small = scaling.SMALL_BAGS
    if quick:
        sizes, repeats, large, small = QUICK_SIZES, 1, QUICK_SIZES, 4
    if threads is not None:
        torch.set_num_threads(threads)
    left_out: list[str] = []
    # first, while this process holds little itself
    largest = million.measured(PASSES, left_out, QUICK_MILLION if quick else million.TOKENS)
    models = [name for name in (MODELS if peers else MODELS[:2]) if _is_here(name, left_out)]
    memory = _memory(models, sizes, left_out)
    times = [_times(T, which, repeats, models, memory) for T in sizes for which in PASSES]
    result = {
        "benchmark": "model",
        "machine": machine() | {"backend": _backend()},
        "dim": DIM,
        "repeats": repeats,
        "times": times,
        "memory": list(memory.values()),
        "growth": scaling.growth(f"{__name__}:prepare", large, PASSES),
        "small_bags": scaling.small_bags(
            functools.partial(_pass, model_named("marble"), which=PASSES[1]),
            synthetic_bag,
            _packed_products,
            small,
            repeats,
        ),
        "million": largest,
        "left_out": left_out,
    }
    _print(result)
    if json_path is not None:
        publish_json(json_path, result)
    return result


# ---- what is measured ----------------------------------------------------------------------------------------------


def synthetic_bag(T: int) -> Bag:
    """T fine tokens in random order, 16 to a coarse one."""
    rng = generator("bench", T)
    R = max(1, T // 16)
    coarse = torch.stack([torch.arange(R) // 64, torch.arange(R) % 64], dim=1)
    parent = torch.arange(T) % R
    place = torch.arange(T) // R  # 0..15 inside the parent, more if T is not a multiple of 16
    fine = coarse[parent] * 5 + torch.stack([place // 5, place % 5], dim=1)
    bag = Bag(
        "bench",
        [
            Level(torch.randn(R, DIM, generator=rng), coarse),
            Level(torch.randn(T, DIM, generator=rng), fine, parent, ratio=5),
        ],
    )
    return shuffled(bag, rng)


class TransformersBlock(nn.Module):
    """Hugging Face's Mamba-2 mixer, torch path, of the same size."""

    def __init__(self) -> None:
        super().__init__()
        with contextlib.suppress(UnavailableError):
            import_timm()  # makes torchvision, which transformers imports too, load beside a CPU build of torch
        from transformers import Mamba2Config
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

        self.mixer: Any = Mamba2Mixer(
            Mamba2Config(
                hidden_size=DIM, num_heads=2 * DIM // 64, head_dim=64, state_size=128, n_groups=1, chunk_size=256
            ),
            layer_idx=0,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.mixer(tokens[None])[0]
        return out


def model_named(name: str) -> Callable[[Bag], Tensor]:
    """The logits of a freshly built model, as a function of a bag."""
    torch.manual_seed(0)
    if name == "transformers":
        marble = build("marble", DIM, 2)
        assert isinstance(marble, Marble)
        marble.mixers = nn.ModuleList(nn.ModuleList([TransformersBlock()]) for _ in range(2))
        return _logits(marble, marble.forward_as_written)
    model: BagModel = build(
        "marble" if name == TORCH_PATH else name, DIM, 2, **({"gated": True} if name == "abmil" else {})
    )
    for mixer in model.modules():
        if name == TORCH_PATH and isinstance(mixer, Mamba2):
            mixer.backend = "torch"
    return _logits(model, model)


def _logits(model: nn.Module, forward: Callable[[Bag], Output]) -> Callable[[Bag], Tensor]:
    model.eval()

    def logits(bag: Bag) -> Tensor:
        model.zero_grad()  # as every step of a fit begins; else old gradients would be added to, and that measured
        return forward(bag).logits

    return logits


def prepare(name: str, T: int, which: str) -> Callable[[], object]:
    """One pass of a model over a bag of T fine tokens, warmed up on a tiny one so that only this pass is measured."""
    logits = model_named(name)
    one_pass = functools.partial(_pass, logits, which=which)
    one_pass(synthetic_bag(64))
    return functools.partial(one_pass, synthetic_bag(T))


def _pass(logits: Callable[[Bag], Tensor], bag: Bag, which: str) -> None:
    if which == "forward":
        with torch.inference_mode():
            logits(bag)
    else:
        torch.autograd.backward(logits(bag).sum())


def _is_here(name: str, left_out: list[str]) -> bool:
    try:
        model_named(name)
    except (ImportError, InputError) as error:
        left_out.append(f"{name}: not here ({error})")
        return False
    return True


# ---- the matrix products -------------------------------------------------------------------------------------------


def products(T: int, R: int, *, algebra: bool, backward: bool) -> list[Product]:
    """Every matrix product of two-level MARBLE with R coarse and T fine tokens; features need no gradient."""
    shape = block_shape(DIM)
    W, inner = shape.projected, shape.inner
    coarse = [(R, DIM, W), (R, inner, DIM)]
    coarse_back = [(DIM, R, inner), (R, DIM, inner), (W, R, DIM)]  # of out_proj (weight, input), of in_proj (weight)
    if not algebra:
        forward = [*coarse, (T, 2 * DIM, DIM), (T, DIM, W), (T, inner, DIM)]
        back = [(DIM, T, inner), (T, DIM, inner), (W, T, DIM), (T, W, DIM), (DIM, T, 2 * DIM), (T, DIM, 2 * DIM)]
        return forward + (back + coarse_back if backward else [])
    context, context_back = [(R, DIM, DIM)], [(DIM, R, DIM), (R, DIM, DIM)]
    if composing_pays(T, R, DIM, W, training=backward):
        forward = [*coarse, *context, (W, DIM, DIM), (R, DIM, W), (T, DIM, W)]
        back = [(W, T, DIM), (W, DIM, DIM), (DIM, W, DIM), (W, R, DIM), (R, W, DIM)]
    else:
        forward = [*coarse, *context, (T, DIM, DIM), (T, DIM, W)]
        back = [(W, T, DIM), (T, W, DIM), (DIM, T, DIM)]
    return forward + (back + context_back + coarse_back if backward else [])


def multiply(shapes: Sequence[Product]) -> Callable[[], None]:
    """A function that runs the products in buffers made beforehand."""
    left = torch.randn(max(m * k for m, k, _ in shapes))
    right = torch.randn(max(k * n for _, k, n in shapes))
    out = torch.empty(max(m * n for m, _, n in shapes))

    def run_all() -> None:
        for m, k, n in shapes:
            torch.mm(left[: m * k].view(m, k), right[: k * n].view(k, n), out=out[: m * n].view(m, n))

    return run_all


# ---- the measurement -----------------------------------------------------------------------------------------------

Memory = dict[tuple[str, int, str], dict[str, Any]]


def _memory(models: Sequence[str], sizes: Sequence[int], left_out: list[str]) -> Memory:
    """Peak memory of each model that fits; from one size to the next it is expected to grow no less than linearly."""
    found: Memory = {}
    for name in models:
        for which in PASSES:
            known: tuple[int, int] | None = None  # (tokens, bytes)
            for T in sorted(sizes):
                if known is not None and known[1] * T / known[0] > MEMORY_SHARE * available_bytes():
                    left_out.append(f"{name}: {which} of {T} tokens would not fit in memory")
                    continue
                peak = peak_memory(f"{__name__}:prepare", name, T, which, threads=torch.get_num_threads())
                known = (T, peak)
                entry = {"model": name, "tokens": T, "pass": which, "bytes": peak, "kb_per_token": peak / T / 1024}
                found[name, T, which] = entry
    return found


def _times(T: int, which: str, repeats: int, models: Sequence[str], memory: Memory) -> dict[str, Any]:
    R, backward = max(1, T // 16), which != "forward"
    cases: dict[str, Callable[[], object]] = {
        "products as written": multiply(products(T, R, algebra=False, backward=backward)),
        "products by algebra": multiply(products(T, R, algebra=True, backward=backward)),
    }
    cases |= {name: prepare(name, T, which) for name in models if (name, T, which) in memory}
    large = T >= LARGE
    seconds = interleaved(cases, max(1, repeats - 1) if large else repeats, warmup=0 if large else 1)
    ratios = {name: value / seconds["products as written"] for name, value in seconds.items()}
    return {"tokens": T, "pass": which, "seconds": seconds, "ratio": ratios}


def _packed_products(tokens: int) -> Callable[[], None]:
    return multiply(products(tokens, max(1, tokens // 16), algebra=False, backward=True))


def _backend() -> str:
    return choose_backend("auto", block_shape(DIM), torch.zeros(1))


def _print(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="Two-level MARBLE, D = 1024")
    for heading in ("tokens", "pass", "what", "seconds", "x products as written", "KB per token"):
        table.add_column(heading, justify="left" if heading in ("pass", "what") else "right")
    memory = {(entry["model"], entry["tokens"], entry["pass"]): entry["kb_per_token"] for entry in result["memory"]}
    for row in result["times"]:
        for name, seconds in row["seconds"].items():
            kilobytes = memory.get((name, row["tokens"], row["pass"]))
            table.add_row(
                f"{row['tokens']:,}",
                row["pass"],
                name,
                f"{seconds:.3f}",
                f"{row['ratio'][name]:.2f}",
                "" if kilobytes is None else f"{kilobytes:.1f}",
            )
        table.add_section()
    console.print(table)
    for row in result["growth"]["rows"] + result["million"]:
        per_token = row["bytes"] / row["tokens"] / 1024
        console.print(
            f"{row['tokens']:,} tokens, {row['pass']}: {row['seconds']:.2f} s, {per_token:.1f} KB per token,"
            f" {row['bytes'] / 2**30:.2f} GiB"
        )
    for which, exponent in result["growth"]["exponent"].items():
        console.print(f"{which}: time grows as tokens^{exponent:.2f}")
    few = result["small_bags"]
    console.print(f"{few['bags']} bags, {few['tokens']:,} tokens: {few['ratio']:.2f} times the products of all at once")
    for line in result["left_out"]:
        console.print(f"left out: {line}")
