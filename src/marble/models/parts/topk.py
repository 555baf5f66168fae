"""Choosing the k best tokens: hard, or softly by perturbing the scores so that a gradient reaches them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def hard_topk(scores: Tensor, k: int) -> Tensor:
    """(k, N) one row per chosen token, a single 1 in each; chosen tokens in ascending order."""
    chosen = scores.topk(k, sorted=False).indices.sort().values
    return torch.nn.functional.one_hot(chosen, len(scores)).to(scores.dtype)


def perturbed_topk(scores: Tensor, k: int, noise: Tensor, sigma: float) -> Tensor:
    """(k, N) mean over samples of the hard choice under scores + sigma * noise; each row sums to 1.

    Args:
        scores: (N,).
        k: how many tokens are chosen.
        noise: (samples, N) standard normal.
        sigma: size of the perturbation.
    """
    indicators: Tensor = _PerturbedTopK.apply(scores, k, noise, sigma)  # type: ignore[no-untyped-call]
    return indicators


class _PerturbedTopK(torch.autograd.Function):
    """Forward and the gradient estimate of the original code.

    The estimate pairs the noise of token n with the choice of token n only: d indicator[j, n] / d score[n] =
    mean over samples of [token n is the j-th choice] * noise[n] / sigma. Terms across tokens are left out, as there.
    Nothing of size (samples, k, N) is made: choices are counted by index.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: int, noise: Tensor, sigma: float) -> Tensor:
        samples = len(noise)
        chosen = (scores + sigma * noise).topk(k, dim=1, sorted=False).indices.sort(dim=1).values.T  # (k, samples)
        indicators = scores.new_zeros(k, len(scores))
        indicators.scatter_add_(1, chosen, indicators.new_full(chosen.shape, 1 / samples))
        slope = torch.zeros_like(indicators)
        picked_noise = noise.gather(1, chosen.T).T  # (k, samples)
        slope.scatter_add_(1, chosen, picked_noise / (samples * sigma))
        ctx.save_for_backward(slope)
        return indicators

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return (grads[0] * slope).sum(dim=0), None, None, None
