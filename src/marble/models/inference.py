"""The one way a model is asked about a bag outside training.

The tokens are first sorted by cell, so the order they were stored in cannot matter. A model whose result depends on
the order of tokens then sees `orders` fixed permutations of that canonical bag, and their logits are averaged; how far
they lie apart is reported with the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from marble.bags.augment import canonical, generator, random_orders, reorder
from marble.bags.bag import Bag
from marble.errors import InputError, NonFiniteError
from marble.memory import told_if_short
from marble.models.base import BagModel, BagOrTokens, bag_of

ORDERS = 8


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says about one slide, and how sure it is of the order it read it in."""

    slide_id: str
    logits: Tensor  # (outputs,) mean over the orders
    logits_by_order: Tensor  # (K, outputs)
    embedding: Tensor  # (E,) mean over the orders
    attention: Tensor  # (T,) mean over the orders, sums to 1
    cells: Tensor  # (T, 2) the tiles that `attention` is about, row-major
    level: int

    @property
    def order_sd(self) -> float:
        """Standard deviation of the logits over the orders, the largest of all outputs; 0 if order cannot matter."""
        if len(self.logits_by_order) < 2:
            return 0.0
        return float(self.logits_by_order.double().std(dim=0).max())


@torch.no_grad()
def infer(model: BagModel, bag: BagOrTokens, orders: int = ORDERS) -> Prediction:
    """Predict; bitwise the same for every order `bag` may be stored in. Tokens (N, D) are a bag of one level.

    The bag is moved to where the model is, and its orders are dealt there; the answer is on the CPU.
    """
    if not isinstance(model, nn.Module):
        hint = "Ask a run by its `predict`; a model is what `marble.build` returns"
        raise InputError(f"a model predicts, got {type(model).__name__}", hint=hint)
    if not isinstance(orders, int) or orders < 1:
        raise InputError(f"orders must be at least 1, got {orders!r}")
    bag = bag_of(bag)
    was_training = model.training
    model.eval()
    try:
        tiles = " + ".join(f"{len(level):,}" for level in bag.levels)
        with told_if_short(f"{tiles} tiles", bag.slide_id):
            sorted_bag = canonical(bag)
            base = sorted_bag.to(model.device)
            runs = [_one(model, base, k) for k in range(orders if model.order_sensitive else 1)]
    finally:
        model.train(was_training)
    logits, embedding, attention = _on_cpu(
        torch.stack([run[0] for run in runs]),  # (K, outputs)
        torch.stack([run[1] for run in runs]).mean(dim=0),  # (E,)
        torch.stack([run[2] for run in runs]).mean(dim=0),  # (T,)
    )
    if not bool(torch.isfinite(logits).all() and torch.isfinite(attention).all()):
        raise NonFiniteError("the model's prediction is NaN or infinite", where=bag.slide_id)
    level = runs[0][3]
    return Prediction(
        slide_id=bag.slide_id,
        logits=logits.mean(dim=0),
        logits_by_order=logits,
        embedding=embedding,
        attention=attention,
        cells=sorted_bag.levels[level].cells.cpu(),
        level=level,
    )


def _one(model: BagModel, base: Bag, k: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Logits, embedding, attention (in canonical order) and level for the k-th fixed order; the 0th is canonical."""
    if k == 0:
        out = model(base)
        return out.logits, out.embedding, out.attention, out.level
    orders = random_orders(base, generator("evaluation-order", k))
    out = model(reorder(base, orders))
    attention = torch.empty_like(out.attention)
    attention[orders[out.level]] = out.attention
    return out.logits, out.embedding, attention, out.level


def _on_cpu(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the CPU, by one copy that the host waits for instead of one each."""
    joined = torch.cat([tensor.flatten() for tensor in tensors]).cpu()  # of the widest dtype, which holds all exactly
    parts = torch.split(joined, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).to(tensor.dtype, copy=True) for part, tensor in zip(parts, tensors)]
