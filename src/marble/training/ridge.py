"""Ridge regression with any convex loss of the logits, and its strength by cross-validation; in float64.

The loss is a function of rows and their logits: logistic, Cox or squares make no difference here. The penalty is
strength / 2 * |W|^2, without the intercept. Only directions in which the rows differ can matter, so all is solved in
the at most n coordinates of the rows' own space, where the penalty is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from marble.threads import torch_threads

#: rows (m,) -> the sum of their losses as a function of their logits (m, outputs)
RowsLoss = Callable[[Tensor], Callable[[Tensor], Tensor]]

#: strengths tried, times the number of features: from hardly any to next to nothing left
STRENGTHS = tuple(10 ** (power / 2) for power in range(6, -7, -1))
#: so many worse ones after the best so far, and weaker ones are not tried: their fits take longest, and help nobody
PATIENCE = 4


@dataclass(frozen=True)
class Solution:
    """Weight (outputs, F), bias (outputs,), and the strength with the cross-validated loss of each that was tried."""

    weight: Tensor
    bias: Tensor
    strength: float
    tried: dict[float, float]


def solve(
    x: Tensor, loss_of: RowsLoss, outputs: int, intercept: bool, folds: Sequence[Tensor], careful: bool = False
) -> Solution:
    """Fit rows x (n, F) float64 with the strength that predicts each of `folds` (rows left out, m_k each) best.

    The score of a strength is the sum over folds of loss(all rows) - loss(rows kept), both at the fit of the rows
    kept: the loss of the rows left out for a sum over rows, the cross-validated partial likelihood for Cox. A careful
    choice is the strongest of all, which leaves next to nothing, unless it is worse than the best by more than a
    standard error of their difference over the folds: where nothing is to be seen, nothing is fitted.
    """
    rows, features = x.shape
    z, back = _own_space(x)
    everyone = torch.arange(rows)
    whole = _Part(z, everyone, loss_of)
    kept = [_Part(z, everyone[~torch.isin(everyone, fold)], loss_of) for fold in folds]
    at: list[np.ndarray | None] = [None for _ in folds]
    scores: dict[float, list[float]] = {}  # one of each fold
    best, rising = 0.0, 0
    # Sums over some hundred numbers: threads that wait for each other there take many times as long. Around all fits,
    # since to set it takes as long as a small one.
    with threadpool_limits(limits=1, user_api="blas"), torch_threads(1):
        for strength in (strength * features for strength in STRENGTHS):  # each starts where the one before it ended
            scores[strength] = []
            for k, rest in enumerate(kept):
                at[k] = found = _fit(rest, outputs, intercept, strength, at[k])
                logits = _logits(z, found, outputs, intercept)
                scores[strength].append(float(whole.loss(logits)) - float(rest.loss(logits[rest.rows])))
            if best == 0 or sum(scores[strength]) < sum(scores[best]):  # the first, so the strongest, of equals
                best, rising = strength, 0
            else:
                rising += 1
            if rising == PATIENCE:
                break
        strongest = STRENGTHS[0] * features
        if careful and _as_good(scores[strongest], scores[best]):
            best = strongest
        solved = _fit(whole, outputs, intercept, best, None)
    weight, bias = _split(solved, z.shape[1], outputs, intercept)
    return Solution(weight @ back.t(), bias, best, {s: sum(score) / rows for s, score in scores.items()})


def _as_good(scores: Sequence[float], best: Sequence[float]) -> bool:
    """Whether their sums differ by no more than a standard error, folds being compared with themselves."""
    apart = np.subtract(scores, best)
    return bool(apart.sum() <= np.sqrt(len(apart)) * apart.std(ddof=1)) if len(apart) > 1 else bool(apart.sum() <= 0)


def _own_space(x: Tensor) -> tuple[Tensor, Tensor]:
    """Z (n, r) and an orthonormal back (F, r) with x = z back^T."""
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    keep = s > s.max().clamp_min(1e-300) * 1e-12
    keep[0] = True
    return u[:, keep] * s[keep], vt[keep].t()


class _Part:
    """Some of the rows, in their own space, with their loss."""

    def __init__(self, z: Tensor, rows: Tensor, loss_of: RowsLoss) -> None:
        self.rows = rows  # (m,)
        self.z = z[rows]  # (m, r)
        self.loss = loss_of(rows)


def _fit(part: _Part, outputs: int, intercept: bool, strength: float, start: np.ndarray | None) -> np.ndarray:
    """The minimum as a flat vector: weights (outputs, r), then the intercepts."""
    size = outputs * part.z.shape[1]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        # By hand but for the loss itself: a graph of the few products around it takes longer than they do.
        weight = torch.from_numpy(flat)[:size].view(outputs, -1)
        logits = _logits(part.z, flat, outputs, intercept).requires_grad_()
        loss = part.loss(logits)
        (by_logit,) = torch.autograd.grad(loss, logits)  # (m, outputs)
        slope = [(by_logit.t() @ part.z + strength * weight).flatten()]
        if intercept:
            slope.append(by_logit.sum(dim=0))
        value = float(loss.detach()) + strength / 2 * float(weight.square().sum())
        return value, torch.cat(slope).numpy()

    first = np.zeros(size + (outputs if intercept else 0)) if start is None else start
    options = {"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-7}
    found = minimize(objective, first, method="L-BFGS-B", jac=True, options=options)
    return np.asarray(found.x, dtype=np.float64)


def _logits(z: Tensor, flat: np.ndarray, outputs: int, intercept: bool) -> Tensor:
    weight, bias = _split(flat, z.shape[1], outputs, intercept)
    return z @ weight.t() + bias


def _split(flat: np.ndarray, width: int, outputs: int, intercept: bool) -> tuple[Tensor, Tensor]:
    at = torch.from_numpy(flat)
    bias = at[outputs * width :] if intercept else at.new_zeros(outputs)
    return at[: outputs * width].view(outputs, width), bias
