"""MARBLE's weights as training finds them: the block of a level, the pooling vector, and where the fusion starts.

default    every map random
even       w = 0: evenly pooled tokens
residual   w = 0, phi([x, c]) = x + a random map of c
fine       w = 0, phi([x, c]) = x
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from marble.models.ssm.set_mixer import SetMixer
from marble.models.ssm.ssd import Mamba2, block_shape


class TokenMlp(nn.Module):
    """A gated MLP on each token alone, with as many parameters as a given block: what is left without the scan."""

    def __init__(self, dim: int, parameters: int) -> None:
        super().__init__()
        hidden = max(1, round(parameters / (3 * dim)))
        self.expand = nn.Linear(dim, 2 * hidden, bias=False)
        self.out_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        value, gate = self.expand(tokens).chunk(2, dim=-1)
        out: Tensor = self.out_proj(value * silu(gate))
        return out


def new_mixer(kind: str, dim: int, d_state: int, headdim: int | None) -> nn.Module:
    """A block of the kind that `mixer` names; heads of 64 unless told, or what divides the inner width 2D."""
    headdim = math.gcd(2 * dim, 64) if headdim is None else headdim
    if kind == "mamba2":
        return Mamba2(dim, d_state=d_state, headdim=headdim)
    if kind == "set":
        return SetMixer(dim, d_state=d_state, headdim=headdim)
    return TokenMlp(dim, block_shape(dim, d_state=d_state, headdim=headdim).parameters(dim))


def new_score(width: int) -> nn.Linear:
    """A pooling vector w (D,), whose scores of standard tokens have variance 1."""
    score = nn.Linear(width, 1, bias=False)
    nn.init.normal_(score.weight, std=1 / math.sqrt(width))
    return score


@torch.no_grad()
def start_from(start: str, fusions: Iterable[nn.Module], scores: Iterable[nn.Module]) -> None:
    """Put the weights of every phi and every w where `start` has them; no random number is drawn."""
    if start == "default":
        return
    for phi in fusions:
        assert isinstance(phi, nn.Linear)
        width = phi.out_features
        if start in ("fine", "residual"):
            phi.weight[:, :width].copy_(torch.eye(width))
            nn.init.zeros_(phi.bias)
        if start == "fine":
            nn.init.zeros_(phi.weight[:, width:])
    for w in scores:
        assert isinstance(w, nn.Linear)
        nn.init.zeros_(w.weight)
