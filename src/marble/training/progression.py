"""How far a fit has come: what the loop remembers from epoch to epoch, and which epoch it would keep."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from marble.models.recipe import Recipe


@dataclass
class Progression:
    """Counts, the chosen epoch and the history; part of every checkpoint."""

    epoch: int = 0  # epochs done
    step: int = 0  # optimiser steps done
    best_epoch: int = 0
    best_metric: float = float("-inf")
    best_loss: float = float("inf")
    metric_since: int = 0  # epochs since the metric last got better
    seconds: float = 0.0  # of all epochs, also those before a resume
    notes: list[str] = field(default_factory=list)  # on what came before the first step
    history: list[dict[str, Any]] = field(default_factory=list)

    def choose(self, recipe: Recipe, metric: float, loss: float) -> None:
        """End an epoch. A better metric wins; among equal metrics the lower loss.

        Patience counts epochs without a better metric. Before the recipe's first epoch of choice nothing is chosen, and
        patience does not begin. A recipe that keeps the last epoch chooses nothing else, and has no patience to lose.
        """
        self.epoch += 1
        if self.epoch < min(recipe.choose_from, recipe.epochs):
            return
        if recipe.select_by == "last":
            if self.epoch == recipe.epochs:
                self.best_epoch, self.best_metric, self.best_loss = self.epoch, metric, loss
            return
        by_loss = recipe.select_by == "loss"
        better = loss < self.best_loss if by_loss else metric > self.best_metric
        tied = not by_loss and metric == self.best_metric and loss < self.best_loss
        self.metric_since = 0 if better else self.metric_since + 1
        if better or tied:
            self.best_epoch, self.best_metric, self.best_loss = self.epoch, metric, loss

    def patience_is_over(self, recipe: Recipe) -> bool:
        return self.metric_since >= recipe.patience and self.epoch >= recipe.patience_from

    def as_json(self) -> dict[str, Any]:
        body = asdict(self)
        for key in ("best_metric", "best_loss"):  # JSON has no infinity
            body[key] = body[key] if np.isfinite(body[key]) else None
        body["history"] = [list(row.items()) for row in self.history]  # pairs, because JSON objects are stored sorted
        return body

    @staticmethod
    def from_json(body: dict[str, Any]) -> Progression:
        found = Progression(**{**body, "history": [dict(row) for row in body["history"]]})
        found.best_metric = float("-inf") if found.best_metric is None else found.best_metric
        found.best_loss = float("inf") if found.best_loss is None else found.best_loss
        return found
