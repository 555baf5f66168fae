"""Optimisers and learning-rate schedules of the recipes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from marble.errors import RunError
from marble.models.base import BagModel, decay_groups
from marble.models.recipe import Recipe

#: what changes in a loss scaler while it works
SCALER_STATE = {"scale": float, "_growth_tracker": int}


class Lookahead:
    """Slow weights that follow the fast ones: every `k` steps, slow += alpha (fast - slow), and fast = slow."""

    def __init__(self, fast: torch.optim.Optimizer, k: int = 6, alpha: float = 0.5) -> None:
        self.fast, self.k, self.alpha = fast, k, alpha
        self.steps = 0
        self.slow = [p.detach().clone() for p in parameters_of(fast)]

    @torch.no_grad()
    def after_step(self) -> None:
        self.steps += 1
        if self.steps % self.k == 0:
            for slow, parameter in zip(self.slow, parameters_of(self.fast), strict=True):
                slow.lerp_(parameter, self.alpha)
                parameter.copy_(slow)


class Optimizer:
    """A recipe's optimiser: step, clip, and a state of plain tensors that survives a restart bitwise.

    Args:
        model: whose weights are stepped.
        recipe: how.
        mixed: forward passes are in float16: the loss is scaled up, so that small gradients do not vanish, and a step
            whose gradients overflow is left out and lowers the scale.
    """

    def __init__(self, model: BagModel, recipe: Recipe, mixed: bool = False) -> None:
        self.on_cpu = model.device.type == "cpu"
        self.recipe = recipe
        self.groups = [[p for _, p in group] for group in model.optimizer_groups()]
        self.inner = _build(model, recipe)
        self.lookahead = Lookahead(self.inner) if recipe.optimizer.startswith("lookahead") else None
        self.scaler = torch.amp.GradScaler(
            model.device.type, enabled=mixed
        )  # does nothing at all where it is not enabled

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call backward on."""
        return self.scaler.scale(loss)

    def step(self, lr: float) -> None:
        """Clip, step with learning rate `lr`, clear the gradients. Raises if a gradient to be clipped is not finite."""
        self.scaler.unscale_(self.inner)
        if self.recipe.clip is not None:
            for group in self.groups if self.recipe.clip_per_group else [list(itertools.chain(*self.groups))]:
                # Looking at the norm would make the host wait for an accelerator; there the next loss tells.
                look = self.on_cpu and not self.scaler.is_enabled()
                torch.nn.utils.clip_grad_norm_(group, self.recipe.clip, error_if_nonfinite=look)
        for options in self.inner.param_groups:
            options["lr"] = lr
        scale = self.scaler.get_scale()
        self.scaler.step(self.inner)
        self.scaler.update()
        left_out = self.scaler.get_scale() < scale
        if self.lookahead is not None and not left_out:
            self.lookahead.after_step()
        self.inner.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for i, parameter in enumerate(parameters_of(self.inner)):
            for key, value in self.inner.state.get(parameter, {}).items():
                tensors[f"{i}.{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
        if self.lookahead is not None:
            tensors["lookahead.steps"] = torch.tensor(self.lookahead.steps)
            tensors.update({f"lookahead.{i}": slow for i, slow in enumerate(self.lookahead.slow)})
        if self.scaler.is_enabled():
            kept = self.scaler.state_dict()
            tensors.update({f"scaler.{key}": torch.tensor(kept[key], dtype=torch.float64) for key in SCALER_STATE})
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        if any(key.startswith("scaler.") for key in tensors) != self.scaler.is_enabled():
            raise RunError(
                "training began in float16 and cannot go on in float32, or the other way round",
                hint="Resume it on the kind of machine it was started on, or start it again in another folder",
            )
        for i, parameter in enumerate(parameters_of(self.inner)):
            mine = {key.partition(".")[2]: value for key, value in tensors.items() if key.partition(".")[0] == str(i)}
            if mine:
                self.inner.state[parameter] = {key: self._placed(key, value, parameter) for key, value in mine.items()}
        if self.lookahead is not None:
            self.lookahead.steps = int(tensors["lookahead.steps"])
            pairs = enumerate(parameters_of(self.inner))
            self.lookahead.slow = [tensors[f"lookahead.{i}"].to(weight.device, copy=True) for i, weight in pairs]
        if self.scaler.is_enabled():
            kept = {key: kind(tensors[f"scaler.{key}"]) for key, kind in SCALER_STATE.items()}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **kept})

    def _placed(self, key: str, value: Tensor, parameter: Tensor) -> Tensor:
        """State of a parameter where the parameter is; steps are counted on the CPU, unless they are fused."""
        stays = key == "step" and not self.inner.defaults.get("fused")
        return value.clone() if stays else value.to(parameter.device, copy=True)


def learning_rate(recipe: Recipe, steps_per_epoch: int) -> Callable[[int], float]:
    """The learning rate as a function of the optimiser step, counted from 0; it has no state to lose."""
    total = max(1, recipe.epochs * steps_per_epoch)
    warmup = recipe.warmup * steps_per_epoch if recipe.schedule == "warmup-cosine" else 0

    def rate(step: int) -> float:
        if step < warmup:
            return recipe.lr * (step + 1) / warmup
        if recipe.schedule in ("warmup-cosine", "cosine"):
            progress = min(1.0, (step - warmup) / max(1, total - warmup))
            return recipe.lr_min + (recipe.lr - recipe.lr_min) * 0.5 * (1 + cos(pi * progress))
        if recipe.schedule == "multistep":
            passed = sum(step // steps_per_epoch >= milestone for milestone in recipe.milestones)
            return recipe.lr * float(recipe.gamma**passed)
        return recipe.lr

    return rate


def plateau_factor(recipe: Recipe, validation_losses: list[float]) -> float:
    """What `plateau` multiplies the rate by: gamma whenever more than `plateau_patience` epochs brought no new best."""
    if recipe.schedule != "plateau":
        return 1.0
    factor, best, waited = 1.0, float("inf"), 0
    for loss in validation_losses:
        if loss < best * (1 - 1e-4):
            best, waited = loss, 0
        else:
            waited += 1
        if waited > recipe.plateau_patience:
            factor, waited = factor * recipe.gamma, 0
    return factor


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _build(model: BagModel, recipe: Recipe) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = (
        decay_groups(model, recipe.weight_decay)
        if recipe.decay_exempt
        else [{"params": list(model.parameters()), "weight_decay": recipe.weight_decay}]
    )
    groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "lookahead-radam":
        return torch.optim.RAdam(groups, lr=recipe.lr, betas=recipe.betas)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    # Fused: one pass over the weights instead of a dozen, about seven times faster on a CPU at MARBLE's size.
    return kind(groups, lr=recipe.lr, betas=recipe.betas, fused=True)
