"""The Mamba-2 block: (T, d_model) tokens in, (T, d_model) tokens out, with the public names of its weights.

Five paths compute the same thing. `reference` is the recurrence of `ssd_reference`, one token after another. The others
go through `ssd_stream` in segments: `torch` works in the cache and runs everywhere; `native` is the same with the
heads' inner loop compiled, on the CPU; `batched` needs few launches, for accelerators; `mamba_ssm` calls that package's
CUDA kernels. One is chosen per call: the `backend` argument, else the environment variable MARBLE_SSD_BACKEND, else
`native` or `torch` on the CPU, and elsewhere `batched`, or `mamba_ssm` where it proved to be right.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from marble.errors import InputError, UnavailableError
from marble.models.ssm import ssd_mamba, ssd_native
from marble.models.ssm.ssd_reference import SsdShape, SsdWeights, reference_scan
from marble.models.ssm.ssd_stream import SCANS, fast_block
from marble.native import library as native
from marble.native.library import BACKEND_VARIABLE
from marble.specs import unknown_choice

BACKENDS = ("reference", "torch", "native", "batched", "mamba_ssm")
#: those that take rows of projected tokens segment by segment
SEGMENTED = tuple(SCANS)


class BlockSizes(TypedDict, total=False):
    """The sizes of a block that need not be told; `block_shape` has their defaults."""

    d_state: int  # size of each head's state
    d_conv: int  # width of the causal convolution
    expand: int  # inner width over `d_model`
    headdim: int  # width of a head
    ngroups: int  # groups of heads that share their read and write directions; the norm is taken group by group
    eps: float  # of the norm


class GroupedNorm(nn.Module):
    """Holds the scale of the gated RMS norm; the paths apply it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class Mamba2(nn.Module):
    """One Mamba-2 mixer, without residual or norm around it.

    Args:
        d_model: width of the tokens.
        backend: "auto" or one of `BACKENDS`.
        sizes: see `BlockSizes`.
    """

    def __init__(self, d_model: int, *, backend: str = "auto", **sizes: Unpack[BlockSizes]) -> None:
        super().__init__()
        _check_backend(backend, "backend")
        self.backend = backend
        self.shape = shape = block_shape(d_model, **sizes)
        self.in_proj = nn.Linear(d_model, shape.projected, bias=False)
        self.conv1d = nn.Conv1d(shape.convolved, shape.convolved, shape.conv, groups=shape.convolved)
        dt = torch.exp(torch.empty(shape.heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus(dt_bias) = dt
        self.A_log = nn.Parameter(torch.empty(shape.heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(shape.heads))
        self.norm = GroupedNorm(shape.inner)
        self.out_proj = nn.Linear(shape.inner, d_model, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(T, d_model) -> (T, d_model)."""
        return self.run(tokens)[0]

    def run(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The output (T, d_model), and the state (H, P, N) after the last token."""
        if tokens.ndim != 2 or tokens.shape[1] != self.in_proj.in_features or len(tokens) == 0:
            raise InputError(
                f"Mamba2 takes (T, {self.in_proj.in_features}) tokens with T >= 1, got {tuple(tokens.shape)}"
            )
        path = self.path()
        if path == "reference":
            normal, state = reference_scan(self.in_proj(tokens), self.scan_weights(), self.shape)
            return self.out_proj(normal), state
        return fast_block(tokens, self.in_proj.weight, self.out_proj.weight, self.scan_weights(), self.shape, path)

    def path(self) -> str:
        """The one of `BACKENDS` that runs this block where its weights are."""
        return choose_backend(self.backend, self.shape, self.in_proj.weight)

    def scan_weights(self) -> SsdWeights:
        """Everything between the two projections."""
        assert self.conv1d.bias is not None
        return SsdWeights(self.conv1d.weight, self.conv1d.bias, self.dt_bias, self.A_log, self.D, self.norm.weight)


@dataclass(frozen=True)
class Backend:
    """One path, and whether it works here."""

    name: str
    works: bool
    note: str


def backends() -> list[Backend]:
    """Every path and whether it works on this machine."""
    missing, uncompiled = ssd_mamba.why_not(torch.device("cuda")), native.missing()
    return [
        Backend("reference", True, "one token after another; for checking"),
        Backend("torch", True, "any device"),
        Backend("native", uncompiled is None, uncompiled or "compiled inner loop, CPU"),
        Backend("batched", True, "few launches; the default on every accelerator"),
        Backend("mamba_ssm", missing is None, missing or "CUDA kernels, proved equal here"),
    ]


def choose_backend(asked: str, shape: SsdShape, like: Tensor) -> str:
    """The path for a block of `shape` with weights like this: as asked, else by the environment, else the fastest."""
    if asked == "auto":
        asked = os.environ.get(BACKEND_VARIABLE) or "auto"
        _check_backend(asked, BACKEND_VARIABLE)
    if asked == "auto":
        if like.device.type != "cpu":
            return "mamba_ssm" if ssd_mamba.why_not(like.device, like.dtype) is None else "batched"
        return "torch" if ssd_native.why_not(shape, like) else "native"
    reason = None
    if asked == "mamba_ssm":
        reason = ssd_mamba.why_not(like.device, like.dtype)
    elif asked == "native":
        reason = ssd_native.why_not(shape, like)
    if reason is not None:
        raise UnavailableError(
            f"SSD backend {asked!r} does not work here: {reason}", hint="Use backend 'torch', which runs everywhere"
        )
    return asked


def _check_backend(name: str, what: str) -> None:
    if name != "auto" and name not in BACKENDS:
        raise InputError(unknown_choice(f"SSD backend in {what}", name, ["auto", *BACKENDS]))


def block_shape(
    d_model: int,
    d_state: int = 128,
    d_conv: int = 4,
    expand: int = 2,
    headdim: int = 64,
    ngroups: int = 1,
    eps: float = 1e-5,
) -> SsdShape:
    """The sizes of a block; those that do not fit together are refused."""
    inner = expand * d_model
    if min(inner, headdim, ngroups, d_state, d_conv) < 1:
        raise InputError("Mamba2 sizes must be positive")
    if inner % headdim or (inner // headdim) % ngroups:
        raise InputError(
            f"Mamba2: inner width {inner} must be a multiple of headdim {headdim}, and its heads of ngroups {ngroups}"
        )
    return SsdShape(inner // headdim, headdim, ngroups, d_state, d_conv, eps)
