"""Discrete-time survival: the chance of the event in each of a few time bins, given that it has not come before.

    h_k = sigmoid(logit_k)        hazard of bin k
    S_k = prod_{j <= k} (1-h_j)   survival past bin k; S_{-1} = 1
    event in bin y     -log S_{y-1} - log h_y
    censored in bin y  -log S_y
    loss = (1 - alpha) * (both) + alpha * (events only)

Bins are cut at the quantiles of the training patients' event times; a bin holds its left edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from marble.errors import InputError, NonFiniteError, RunError
from marble.targets import Target
from marble.tasks.cox import TrainingPatients
from marble.tasks.criterion import Criterion, JointLoss
from marble.tasks.metric import Bools, Floats, Metric, Undefined, outcome_arrays

#: probabilities below this count as this
FLOOR = 1e-7


def quantile_edges(time: Floats, event: Bools, bins: int) -> Floats:
    """The (bins - 1) inner edges: quantiles of the times of those with an event."""
    if not event.any():
        raise InputError("no event among the training patients: time bins cannot be cut")
    edges = np.quantile(time[event], np.arange(1, bins) / bins)
    if len(np.unique(edges)) < len(edges):
        raise InputError(
            f"event times are too few or too tied for {bins} bins: edges {edges.tolist()}",
            hint="Use fewer bins",
        )
    return edges


def bins_of(time: Floats, edges: Floats) -> Tensor:
    """Bin of each time, 0 .. bins - 1."""
    return torch.from_numpy(np.searchsorted(edges, time, side="right").astype(np.int64))


def survival_curve(logits: Tensor) -> Tensor:
    """Logits (..., bins) -> survival past each bin (..., bins)."""
    return torch.cumprod(1 - torch.sigmoid(logits), dim=-1)


def survival_at(survival: Floats, edges: Floats, end: float, times: Floats) -> Floats:
    """Survival past each bin (n, bins) as curves at any times (m,): (n, m).

    Known at the inner edges (bins - 1,) and at `end`, the longest follow-up in training, where the last bin is closed.
    Between them it falls evenly, as if the events of a bin were spread over it; after `end` it stays where it was.
    """
    known = np.concatenate([[0.0], edges, [max(end, edges[-1])]])
    curves = [np.interp(times, known, np.append(1.0, past)) for past in survival]
    return np.array(curves, dtype=np.float64).reshape(len(survival), len(times))


def discrete_nll(logits: Tensor, time_bin: Tensor, event: Tensor, alpha: float = 0.0) -> Tensor:
    """Mean loss of logits (n, bins), bins (n,) and events (n,)."""
    if logits.ndim != 2 or time_bin.shape != logits.shape[:1] or event.shape != logits.shape[:1]:
        shapes = f"{tuple(logits.shape)}, {tuple(time_bin.shape)}, {tuple(event.shape)}"
        raise InputError(f"logits, bins and events must be (n, bins), (n,), (n,), got {shapes}")
    y, seen = time_bin.to(logits.device)[:, None], event.to(logits.device).bool()
    hazard = torch.sigmoid(logits)  # (n, bins)
    past = survival_curve(logits)
    before = torch.cat([torch.ones_like(past[:, :1]), past[:, :-1]], dim=1)  # S_{k-1}
    log_hazard, log_past, log_before = (p.gather(1, y)[:, 0].clamp(min=FLOOR).log() for p in (hazard, past, before))
    losses = torch.where(seen, -log_before - log_hazard, -(1 - alpha) * log_past)
    return losses.mean()


class DiscreteCriterion(Criterion):
    """The discrete-time loss of each slide, in bins cut on the training patients."""

    def __init__(self, targets: Mapping[str, Target], patients: Mapping[str, str], bins: int, alpha: float) -> None:
        self._cohort = TrainingPatients(targets, patients)
        self._alpha = alpha
        self.edges = quantile_edges(self._cohort.time.numpy(), self._cohort.event.numpy(), bins)  # (bins - 1,)
        self._bins = bins_of(self._cohort.time.numpy(), self.edges)  # (patients,)

    def loss(self, slide_id: str, logits: Tensor, stream: str = "main") -> Tensor:
        patient = self._cohort.patient_of[self._cohort.index_of(slide_id)][None]
        self._check(logits[None], slide_id)
        return discrete_nll(logits[None], self._bins[patient], self._cohort.event[patient], self._alpha)

    def joint_loss(self, slide_ids: Sequence[str]) -> JointLoss:
        patient = self._cohort.patient_of[[self._cohort.index_of(slide_id) for slide_id in slide_ids]]
        return self._sum(self._bins[patient], self._cohort.event[patient], "training slides")

    def held_out_loss(self, targets: Mapping[str, Target], patients: Mapping[str, str]) -> JointLoss:
        time, event = outcome_arrays(list(targets.values()))
        return self._sum(bins_of(time, self.edges), torch.from_numpy(event), "slides left out")

    def _sum(self, bins: Tensor, event: Tensor, where: str) -> JointLoss:
        """Of slides with bins (n,) and events (n,)."""

        def loss(logits: Tensor) -> Tensor:
            self._check(logits, where)
            return len(bins) * discrete_nll(logits, bins, event, self._alpha)

        return loss

    def validation_loss(self, targets: Sequence[Target], logits: Tensor) -> Metric:
        if not targets:
            return Undefined("no cases")
        time, event = outcome_arrays(targets)
        values = logits.detach().double().cpu()
        self._check(values, "validation")
        return float(discrete_nll(values, bins_of(time, self.edges), torch.from_numpy(event), self._alpha))

    def state(self) -> dict[str, Tensor]:
        return {"edges": torch.from_numpy(self.edges.copy())}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        edges = state.get("edges")
        if edges is None or len(state) != 1 or not np.array_equal(edges.numpy(), self.edges):
            raise RunError(
                "the checkpoint's time bins are not those of the training patients",
                hint="Resume with the cohort and the split that the run was started with",
            )

    def _check(self, logits: Tensor, where: str) -> None:
        bins = len(self.edges) + 1
        if logits.ndim != 2 or logits.shape[1] != bins:
            raise InputError(f"{bins} time bins need {bins} logits, got shape {tuple(logits.shape[1:])}", where=where)
        if not torch.isfinite(logits).all():
            raise NonFiniteError("a logit is not finite", where=where)
