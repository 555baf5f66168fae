"""Writes the tables of `docs/concepts/scale.md` from `marble.extract.cost`: `python -m tests.docs.scale`."""

from __future__ import annotations

import re
from dataclasses import replace

from marble.extract.cost import Bill, Fleet, Prices, SlideCost, Training, bill
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "concepts" / "scale.md"
BEGIN, END = "<!-- the tables, made by `python -m tests.docs.scale` -->", "<!-- end of the tables -->"
SIZES = (1, 1_000, 100_000)

FINE, COARSE = 16_000, 1_000  # tiles at 40x and 10x
TILES = FINE + COARSE
TOKEN_BYTES = 1024 * 2 + 2 * 4  # and a parent of 8 bytes at 40x
DECODED, LITE0, VIT_L = 250.0, 40.0, 1_200.0  # tiles a second: of a core, of a core, of a GPU
LITE0_FLOPS, VIT_L_FLOPS = 0.8e9, 123e9  # of a tile
#: a slide of 1 GiB with 1.6 cm2 of tissue; 64 tiles of a level are read together
ON_CORES = SlideCost(
    tiles=TILES,
    reads=FINE / 64 + COARSE / 16,
    slide_bytes=2**30,
    bag_bytes=TILES * TOKEN_BYTES + FINE * 8,
    open_s=1.0,
    read_s=TILES / DECODED,
    encode_s=TILES / LITE0,
    flops=TILES * LITE0_FLOPS,
)
ON_GPUS = replace(ON_CORES, encode_s=TILES / VIT_L, flops=TILES * VIT_L_FLOPS)
PRICES = Prices(core_hour=0.05, gpu_hour=2.0, gib_month=0.023)
TRAINING = Training(folds=5, epochs=20, step_s=0.2)
GIGABIT = 125e6
FLEETS = {
    "A workstation: one worker of 8 cores, `lite0`": (ON_CORES, Fleet(1, 8)),
    "One node: one worker of 8 cores and a GPU, ViT-L": (ON_GPUS, Fleet(1, 8, 1, link=GIGABIT)),
    "A cluster: 32 such workers, slides over 10 Gbit/s": (
        ON_GPUS,
        Fleet(32, 8, 1, 10 * GIGABIT),
    ),
    "The same with 25 Gbit/s": (ON_GPUS, Fleet(32, 8, 1, 25 * GIGABIT)),
}


def tables() -> str:
    """A table of three sizes for every fleet."""
    parts = []
    for name, (slide, fleet) in FLEETS.items():
        bills = [bill(slide, slides, fleet, TRAINING, PRICES) for slides in SIZES]
        parts.append(f"**{name}**\n\n{_table(bills)}")
    return "\n\n".join(parts)


def _table(bills: list[Bill]) -> str:
    rows = {
        "slides": [f"{one.slides:,}" for one in bills],
        "read from slides": [_bytes(one.slide_bytes) for one in bills],
        "tiles": [f"{one.tiles:,.0f}" for one in bills],
        "reads": [f"{one.reads:,.0f}" for one in bills],
        "encoder": [_flops(one.flops) for one in bills],
        "bags": [_bytes(one.bag_bytes) for one in bills],
        "extraction": [_hours(one.extract_hours) for one in bills],
        "waits for": [one.bottleneck for one in bills],
        "training steps": [f"{one.steps:,}" for one in bills],
        "training": [_hours(one.training_hours) for one in bills],
        "price": [f"{one.money:,.2f}" for one in bills],
    }
    head, *body = [[name, *cells] for name, cells in rows.items()]
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)])


def _bytes(count: float) -> str:
    return _in_units(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _flops(count: float) -> str:
    return _in_units(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def _in_units(count: float, step: int, units: tuple[str, ...]) -> str:
    power = 0
    while count >= step and power + 1 < len(units):
        count, power = count / step, power + 1
    return f"{count:,.1f} {units[power]}"


def _hours(hours: float) -> str:
    if hours * 3600 < 100:
        return f"{hours * 3600:,.0f} s"
    if hours < 2:
        return f"{hours * 60:,.0f} min"
    return f"{hours:,.1f} h" if hours < 72 else f"{hours / 24:,.1f} days"


def page(text: str) -> str:
    """The page with its tables as they are computed now."""
    return re.sub(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{tables()}\n{END}", text, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
