"""Gradient times input: to first order, what each token adds to the score. It tells classes apart."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from marble.attribution.scores import Score
from marble.bags.augment import canonical
from marble.bags.bag import Bag, cell_keys
from marble.models.base import BagModel


def gradient_times_input(model: BagModel, bag: Bag, score: Score) -> list[Tensor]:
    """(T_k,) float64 for each level, in the order of `bag.levels[k]`, coarsest first.

    The finest level's values are those of its own tokens; a coarser tile's are its own and all its descendants', so a
    level's sum is what it and everything finer add to the score. A standardised model's input is the token's distance
    from the training slides' mean, so that is what its gradient is taken times.
    """
    weight = next(model.parameters())
    base = canonical(bag).to(weight.device)
    inputs = [level.features.detach().to(weight.dtype).requires_grad_() for level in base.levels]
    was_training = model.training
    model.eval()
    try:
        watched = base.with_levels([replace(level, features=x) for level, x in zip(base.levels, inputs, strict=True)])
        value = score.of(model(watched).logits)
        gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    finally:
        model.train(was_training)
    own = [
        torch.zeros(len(x), dtype=torch.float64) if g is None else _times(_centred(model, x.detach(), k), g)
        for k, (x, g) in enumerate(zip(inputs, gradients, strict=True))
    ]
    for k in range(base.depth - 1, 0, -1):
        parent = base.levels[k].parent
        assert parent is not None
        own[k - 1] = own[k - 1].index_add(0, parent.cpu(), own[k])
    return [_as_stored(values, level.cells) for values, level in zip(own, bag.levels, strict=True)]


def _centred(model: BagModel, tokens: Tensor, k: int) -> Tensor:
    """(T, D) tokens of level k less the mean a standardised model takes off; the SD cancels with the gradient's."""
    mean = model.inputs.mean
    return tokens if mean is None else tokens - mean[k]


def _times(tokens: Tensor, gradient: Tensor) -> Tensor:
    """(T,) sums of products, in float64 on the CPU."""
    return wide(tokens).mul_(wide(gradient)).sum(dim=1).cpu()


def wide(values: Tensor) -> Tensor:
    """A copy in float64, on the CPU where its device has none (MPS)."""
    return (values.cpu() if values.device.type == "mps" else values).to(torch.float64, copy=True)


def _as_stored(values: Tensor, cells: Tensor) -> Tensor:
    """Values in row-major order of the cells, put back into the order the cells are stored in."""
    placed = torch.empty_like(values)
    placed[torch.argsort(cell_keys(cells))] = values
    return placed
