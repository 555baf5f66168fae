"""The Mamba-2 block: (T, d_model) tokens in, (T, d_model) tokens out, with the public names of its weights.

Four paths compute the same thing. `reference` is the recurrence of `ssd_reference`, one token after another; `torch`
is the segmented path of `ssd_stream`, for any device; `native` is the same with the heads' inner loop compiled, on the
CPU; `mamba_ssm` calls that package's CUDA kernels. One is chosen per call: the `backend` argument, else the environment
variable MARBLE_SSD_BACKEND, else the fastest one that works here.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from marble.errors import InputError, UnavailableError
from marble.models.ssm import ssd_native
from marble.models.ssm.ssd_reference import SsdShape, SsdWeights, reference_scan
from marble.models.ssm.ssd_stream import fast_block
from marble.native import library as native
from marble.native.library import BACKEND_VARIABLE
from marble.specs import unknown_choice

BACKENDS = ("reference", "torch", "native", "mamba_ssm")
#: those that take rows of projected tokens segment by segment
SEGMENTED = ("torch", "native")


class GroupedNorm(nn.Module):
    """Holds the scale of the gated RMS norm; the paths apply it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class Mamba2(nn.Module):
    """One Mamba-2 mixer, without residual or norm around it.

    Args:
        d_model: width of the tokens.
        d_state: size of each head's state.
        d_conv: width of the causal convolution.
        expand: inner width over `d_model`.
        headdim: width of a head.
        ngroups: groups of heads that share their read and write directions; the norm is taken group by group.
        eps: of the norm.
        backend: "auto" or one of `BACKENDS`.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        headdim: int = 64,
        ngroups: int = 1,
        eps: float = 1e-5,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        _check_backend(backend, "backend")
        self.backend = backend
        self.shape = shape = block_shape(d_model, d_state, d_conv, expand, headdim, ngroups, eps)
        self.in_proj = nn.Linear(d_model, shape.projected, bias=False)
        self.conv1d = nn.Conv1d(shape.convolved, shape.convolved, d_conv, groups=shape.convolved)
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
        paths: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
            "reference": self._reference,
            "torch": functools.partial(self._segmented, native=False),
            "native": functools.partial(self._segmented, native=True),
            "mamba_ssm": self._mamba_ssm,
        }
        return paths[self.path()](tokens)

    def path(self) -> str:
        """The one of `BACKENDS` that runs this block where its weights are."""
        return choose_backend(self.backend, self.shape, self.in_proj.weight)

    def scan_weights(self) -> SsdWeights:
        """Everything between the two projections."""
        assert self.conv1d.bias is not None
        return SsdWeights(self.conv1d.weight, self.conv1d.bias, self.dt_bias, self.A_log, self.D, self.norm.weight)

    def _reference(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        normal, state = reference_scan(self.in_proj(tokens), self.scan_weights(), self.shape)
        return self.out_proj(normal), state

    def _segmented(self, tokens: Tensor, native: bool) -> tuple[Tensor, Tensor]:
        return fast_block(tokens, self.in_proj.weight, self.out_proj.weight, self.scan_weights(), self.shape, native)

    def _mamba_ssm(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        weights, shape = self.scan_weights(), self.shape
        out, state = _kernels()(
            self.in_proj(tokens)[None],
            weights.conv_weight[:, 0],
            weights.conv_bias,
            weights.dt_bias,
            -torch.exp(weights.A_log.float()),
            D=weights.D,
            chunk_size=256,
            return_final_states=True,
            activation="silu",
            rmsnorm_weight=weights.norm_weight,
            rmsnorm_eps=shape.eps,
            outproj_weight=self.out_proj.weight,
            headdim=shape.headdim,
            ngroups=shape.groups,
            norm_before_gate=False,
        )
        return out[0], state[0]


@dataclass(frozen=True)
class Backend:
    """One path, and whether it works here."""

    name: str
    works: bool
    note: str


def backends() -> list[Backend]:
    """Every path and whether it works on this machine."""
    missing, uncompiled = _kernels_missing(), native.missing()
    return [
        Backend("reference", True, "one token after another; for checking"),
        Backend("torch", True, "any device"),
        Backend("native", uncompiled is None, uncompiled or "compiled inner loop, CPU"),
        Backend("mamba_ssm", missing is None, missing or "CUDA kernels"),
    ]


def choose_backend(asked: str, shape: SsdShape, like: Tensor) -> str:
    """The path for a block of `shape` with weights like this: as asked, else by the environment, else the fastest."""
    if asked == "auto":
        asked = os.environ.get(BACKEND_VARIABLE) or "auto"
        _check_backend(asked, BACKEND_VARIABLE)
    on_cuda = None if like.device.type == "cuda" else f"tokens are on {like.device.type}"
    why_not = {"mamba_ssm": _kernels_missing() or on_cuda, "native": ssd_native.why_not(shape, like)}
    if asked == "auto":
        return next((name for name, reason in why_not.items() if reason is None), "torch")
    if reason := why_not.get(asked):
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


def _kernels_missing() -> str | None:
    """Why mamba_ssm's kernels cannot run here; None if they can."""
    if not torch.cuda.is_available():
        return "needs a CUDA device"
    if find_spec("mamba_ssm") is None:
        return "needs the package: pip install mamba-ssm"
    return None


def _kernels() -> Callable[..., Any]:
    found: Callable[..., Any] = import_module("mamba_ssm.ops.triton.ssd_combined").mamba_split_conv1d_scan_combined
    return found
