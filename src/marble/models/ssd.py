"""The Mamba-2 block: (T, d_model) tokens in, (T, d_model) tokens out, with the public names of its weights.

Three paths compute the same thing. `reference` is the recurrence of `ssd_reference`, one token after another; `torch`
is the segmented path of `ssd_stream`, for any device; `mamba_ssm` calls that package's CUDA kernels. One is chosen per
call: the `backend` argument, else the environment variable MARBLE_SSD_BACKEND, else the fastest one that works here.
"""

from __future__ import annotations

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
from marble.models.ssd_reference import SsdShape, SsdWeights, reference_scan
from marble.models.ssd_stream import fast_block
from marble.specs import unknown_choice

BACKENDS = ("reference", "torch", "mamba_ssm")
BACKEND_VARIABLE = "MARBLE_SSD_BACKEND"


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
            "torch": self._torch,
            "mamba_ssm": self._mamba_ssm,
        }
        return paths[choose_backend(self.backend, tokens.device)](tokens)

    def scan_weights(self) -> SsdWeights:
        """Everything between the two projections."""
        assert self.conv1d.bias is not None
        return SsdWeights(self.conv1d.weight, self.conv1d.bias, self.dt_bias, self.A_log, self.D, self.norm.weight)

    def _reference(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        normal, state = reference_scan(self.in_proj(tokens), self.scan_weights(), self.shape)
        return self.out_proj(normal), state

    def _torch(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return fast_block(tokens, self.in_proj.weight, self.out_proj.weight, self.scan_weights(), self.shape)

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
    missing = _kernels_missing()
    return [
        Backend("reference", True, "one token after another; for checking"),
        Backend("torch", True, "any device"),
        Backend("mamba_ssm", missing is None, missing or "CUDA kernels"),
    ]


def choose_backend(asked: str, device: torch.device) -> str:
    """The path for tensors on `device`: as asked, else as the environment says, else the fastest that works."""
    if asked == "auto":
        asked = os.environ.get(BACKEND_VARIABLE) or "auto"
        _check_backend(asked, BACKEND_VARIABLE)
    missing = _kernels_missing()
    if asked == "auto":
        return "mamba_ssm" if device.type == "cuda" and missing is None else "torch"
    if asked == "mamba_ssm" and (missing is not None or device.type != "cuda"):
        raise UnavailableError(
            f"SSD backend 'mamba_ssm' does not work here: {missing or f'tokens are on {device.type}'}",
            hint="Use backend 'torch', which runs everywhere",
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
