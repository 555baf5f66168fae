"""The scans that models use against the loops that define them, one token at a time; part of `marble bench zoo`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from marble.bags.augment import generator
from marble.benchmarks.measure import interleaved
from marble.models.ssm.s4d import causal_convolution, s4d_kernel
from marble.models.ssm.scan import selective_scan
from marble.models.ssm.scan2d import selective_scan_2d
from marble.models.ssm.scan_reference import s4d_reference, selective_scan_2d_reference, selective_scan_reference

PASSES = ("forward", "forward+backward")
SCAN_TARGET = 5.0  # times faster than a token-by-token loop

Scan = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class ScanRow:
    """One scan against the loop that defines it."""

    scan: str
    tokens: int
    which: str
    seconds: float
    loop_seconds: float
    ratio: float
    met: bool


def measure_scans(tokens: int, repeats: int) -> list[ScanRow]:
    """Each scan at its paper's width, against the same recurrence one token at a time."""
    rows: list[ScanRow] = []
    for name, (inputs, fast, loop) in scans(tokens).items():
        for which in PASSES:
            cases = {
                kind: functools.partial(_scan, scan, inputs, which) for kind, scan in (("fast", fast), ("loop", loop))
            }
            seconds = interleaved(cases, repeats)
            ratio = seconds["loop"] / seconds["fast"]
            rows.append(ScanRow(name, tokens, which, seconds["fast"], seconds["loop"], ratio, ratio >= SCAN_TARGET))
    return rows


def scans(tokens: int) -> dict[str, tuple[dict[str, Tensor], Scan, Scan]]:
    """{name: inputs, the scan that models use, the loop that defines it}; both give the same numbers.

    Backwards, the 2-D loop also pays for picking single cells out of its inputs, which the other loops do not.
    """
    rng = generator("bench-scans", tokens)
    side = round(tokens**0.5)
    line = _selective_inputs((tokens,), 1024, 16, rng)
    grid = _selective_inputs((side, side), 256, 16, rng)
    d, pairs = 512, 16
    s4d = {
        "u": torch.randn(tokens, d, generator=rng),
        "dt": torch.exp(torch.empty(d).uniform_(-6.9, -2.3, generator=rng)),
        "A": torch.complex(torch.full((d, pairs), -0.5), (torch.pi * torch.arange(pairs)).expand(d, -1)),
        "C": torch.randn(d, pairs, dtype=torch.complex64, generator=rng),
        "D": torch.randn(d, generator=rng),
    }
    return {
        "selective scan": (line, lambda v: selective_scan(**v), lambda v: selective_scan_reference(**v)),
        "selective scan 2-D": (grid, lambda v: selective_scan_2d(**v), lambda v: selective_scan_2d_reference(**v)),
        "s4d": (s4d, lambda v: _s4d(**v), lambda v: s4d_reference(**v)),
    }


def _selective_inputs(places: tuple[int, ...], d: int, n: int, rng: torch.Generator) -> dict[str, Tensor]:
    return {
        "x": torch.randn(*places, d, generator=rng),
        "dt": torch.exp(torch.empty(*places, d).uniform_(-6.9, -2.3, generator=rng)),
        "A": -torch.arange(1.0, n + 1).repeat(d, 1),
        "B": torch.randn(*places, n, generator=rng),
        "C": torch.randn(*places, n, generator=rng),
        "D": torch.ones(d),
    }


def _s4d(u: Tensor, dt: Tensor, A: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """(T, d), as `s4d_reference` gives it; channel by channel and with the kernel in float64, as in `S4D`."""
    kernel = s4d_kernel(dt.double(), A.to(torch.complex128), C.to(torch.complex128), len(u), u.dtype)
    channels = u.T.contiguous()  # (d, T)
    return (causal_convolution(channels, kernel) + D[:, None] * channels).T


def _scan(scan: Scan, inputs: Mapping[str, Tensor], which: str) -> None:
    if which == "forward":
        with torch.no_grad():
            scan(inputs)
    else:
        torch.autograd.backward(scan({name: v.clone().requires_grad_() for name, v in inputs.items()}).sum())
