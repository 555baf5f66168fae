"""The training loop, meant to be read: an epoch over the training slides, validation, the choice, a checkpoint.

Every random number comes from (seed, epoch, slide, purpose), so a run that was killed and resumed gives bitwise the
weights of one that was not. A checkpoint is published after every epoch; one from before the first epoch comes first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as made_again

from marble import files
from marble.bags.augment import canonical, generator
from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.errors import NonFiniteError, RunError
from marble.memory import told_if_short
from marble.models import BagModel, Output
from marble.models.statistics import measure
from marble.tasks.base import Task
from marble.tasks.cox import CoxGroup
from marble.tasks.criterion import Criterion
from marble.tasks.metric import Undefined
from marble.training.averaging import WeightAverage
from marble.training.checkpoint import Checkpoint, load_checkpoint, newest, prune, save_checkpoint
from marble.training.closed_form import solve_linear_term
from marble.training.evaluate import history_row, validate
from marble.training.job import FitJob
from marble.training.losses import LateLosses
from marble.training.optim import Optimizer, learning_rate, plateau_factor
from marble.training.precision import Precision
from marble.training.prefetch import prefetch
from marble.training.progression import Progression
from marble.training.result import FitResult
from marble.training.results import history_csv
from marble.training.share import Share
from marble.training.trackers import Trackers

Progress = Callable[[dict[str, Any]], None]
#: a slide of a group that has more tokens is computed again for its gradient; up to here 16 of them take some 300 MB at
#: MARBLE's full width, and computing them once saves a third of the step
HELD_TOKENS = 512


def _numbered(slides: Sequence[str]) -> list[tuple[str, int]]:
    """Each slide with how often it came before: weighted sampling draws some several times in an epoch."""
    before: Counter[str] = Counter()
    found = []
    for slide in slides:
        found.append((slide, before[slide]))
        before[slide] += 1
    return found


def _silent(event: dict[str, Any]) -> None:
    """Tell nobody."""


class TrainingLoop:
    """The training loop and what it needs at hand."""

    def __init__(
        self,
        job: FitJob,
        root: Path,
        task: Task,
        model: BagModel,
        progress: Progress | None,
        trackers: Trackers | None = None,
        share: Share | None = None,
    ) -> None:
        self.job, self.root, self.task, self.model = job, root, task, model
        self.recipe = job.recipe
        self.store = BagStore(job.store)
        self.progress = progress or _silent
        self.trackers = trackers or Trackers()
        self.share = share or Share()
        self.patient_of = {slide: case.case_id for case in job.train for slide in case.slides}
        self.target_of = {slide: case.target.value() for case in job.train for slide in case.slides}
        self.criterion: Criterion = task.criterion(self.target_of, self.patient_of)
        self.precision = Precision(self.recipe, model.device)
        self.optimizer = Optimizer(model, self.recipe, mixed=self.precision.mixed)
        self.average = None if self.recipe.ema is None else WeightAverage(model, self.recipe.ema)
        self.slides = sorted(self.patient_of)
        self.group = job.task.group if isinstance(self.criterion, CoxGroup) else 1
        self.steps_per_epoch = -(-len(self.slides) // (self.recipe.accumulate * self.group))
        self.rate = learning_rate(self.recipe, self.steps_per_epoch)
        self.at = Progression()
        self.factor = 1.0  # of the learning rate in the current epoch, by the plateau schedule

    def run(self) -> None:
        self._check_selection_is_possible()
        found = newest(self.root / "checkpoints")
        if found is not None:
            self._restore(found)
            self.trackers.write(self.at.history)
        else:
            if self.recipe.standardise:
                self.model.standardise(measure(bag for _, bag in prefetch(self.store.load, self.slides)))
            if self.recipe.linear_term:
                self.at.notes.append(solve_linear_term(self.job, self.criterion, self.model, self.share.value))
                self.at.notes += [self.share.note] if self.share.note else []
            self._prime()
            self._save()
        while self.at.epoch < self.recipe.epochs and not self.at.patience_is_over(self.recipe):
            began = time.perf_counter()
            with self.precision.products():
                loss = self._train_epoch()
            self._validate(loss)
            self.at.seconds += time.perf_counter() - began
            self._save()
            self.trackers.write(self.at.history)
            self.progress({"seconds": self.seconds, **self.at.history[-1]})

    @property
    def seconds(self) -> float:
        """What all epochs took so far."""
        return self.at.seconds

    # ---- training ----------------------------------------------------------------------------------------------

    def _train_epoch(self) -> float:
        self.model.train()
        order = self._order()
        self.factor = plateau_factor(
            self.recipe, [row["val_loss"] for row in self.at.history if isinstance(row["val_loss"], float)]
        )
        losses = LateLosses(self.at.epoch + 1)
        group: list[tuple[str, Output]] = []
        pending = False  # gradients that no step has used yet; none may outlive the epoch, checkpoints do not hold them
        for place, ((slide, _), bag) in enumerate(prefetch(self._augmented, _numbered(order))):
            self._seed_dropout(generator(self.job.seed, self.at.epoch, slide, place, "dropout").initial_seed())
            last = place + 1 == len(order)
            with told_if_short("a training step on this slide", slide):
                group.append((slide, self._forward(bag)))
                if len(group) < self.group and not last:
                    continue
                loss = self._group_loss(group)
                group = []
                if loss is not None:
                    self._backward(loss)
                    losses.add(loss.detach(), slide, place)
                    pending = True
            if pending and ((place + 1) % (self.recipe.accumulate * self.group) == 0 or last):
                self._step(slide, place)
                pending = False
        return losses.total() / len(order)

    def _seed_dropout(self, seed: int) -> None:
        if self.model.device.type == "cpu":
            # torch.manual_seed also notes the stack for every accelerator that might be started later
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _forward(self, bag: Bag) -> Output:
        if self.group == 1 or sum(map(len, bag.levels)) <= HELD_TOKENS:
            return self.precision.forward(self.model, bag)
        # Slides of one graph would be in memory together; so each is computed again when its gradient is.
        out: Output = made_again(self.precision.forward, self.model, bag, use_reentrant=False)
        return out

    def _backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`."""
        slides = self.recipe.accumulate if self.recipe.accumulate_by == "mean" else 1
        torch.autograd.backward(self.optimizer.scaled(loss / slides))

    def _step(self, slide: str, place: int) -> None:
        try:
            self.optimizer.step(self.rate(self.at.step) * self.factor)
        except RuntimeError as error:
            if "non-finite" not in str(error):
                raise
            raise NonFiniteError(
                f"gradient is not finite at epoch {self.at.epoch + 1}, step {place + 1}",
                where=slide,
                hint="Lower the learning rate",
            ) from None
        self.at.step += 1
        if self.average is not None:
            self.average.after_step()

    def _group_loss(self, group: list[tuple[str, Output]]) -> Tensor | None:
        """The loss of the slides of one graph; None for a group in which no two patients can be compared."""
        if not isinstance(self.criterion, CoxGroup):
            ((slide, out),) = group
            return self._loss(slide, out)
        slides = [slide for slide, _ in group]
        if not self.criterion.comparable(slides):
            return None
        outs = [out for _, out in group]
        loss = outs[0].logits_weight * self.criterion.loss_of_group(slides, torch.stack([out.logits for out in outs]))
        # A bag too small for a stream of its own (DTFD) stands in with its main prediction.
        weights = {side.name: side.weight for out in outs for side in out.side}
        for name, weight in weights.items():
            said = [{side.name: side.logits for side in out.side}.get(name, out.logits) for out in outs]
            loss = loss + weight * self.criterion.loss_of_group(slides, torch.stack(said))
        return loss

    def _loss(self, slide: str, out: Output) -> Tensor:
        loss = out.logits_weight * self.criterion.loss(slide, out.logits)
        for side in out.side:
            loss = loss + side.weight * self.criterion.loss(slide, side.logits, side.name)
        label = self.task.class_of(self.target_of[slide])
        if label is not None:
            extra = self.model.extra_loss(out, label)
            loss = loss if extra is None else loss + extra
        return loss

    def _canonical(self, slide: str) -> Bag:
        return canonical(self.store.load(slide))

    def _augmented(self, draw: tuple[str, int]) -> Bag:
        # Models that read tiles in raster order see the same order here as in a prediction.
        slide, before = draw
        again = (before,) if before else ()
        rng = generator(self.job.seed, self.at.epoch, slide, "augment", *again)
        return self.model.augment(self._canonical(slide), rng).to(self.model.device)

    def _placed(self, slide: str) -> Bag:
        return self._canonical(slide).to(self.model.device)

    def _order(self) -> list[str]:
        if self.recipe.sampling == "fixed":
            return self.slides
        rng = generator(self.job.seed, self.at.epoch, "order")
        classes = [self.task.class_of(self.target_of[slide]) for slide in self.slides]
        if self.recipe.sampling == "weighted" and None not in classes:
            weights = torch.tensor([1.0 / classes.count(label) for label in classes])
            drawn = torch.multinomial(weights, len(self.slides), replacement=True, generator=rng)
            return [self.slides[i] for i in drawn.tolist()]
        return [self.slides[i] for i in torch.randperm(len(self.slides), generator=rng).tolist()]

    def _prime(self) -> None:
        """Fill the Cox bank with the untrained model's risks, so that the first step has a whole risk set."""
        if not self.criterion.needs_priming:
            return
        self.model.eval()
        main: dict[str, Tensor] = {}
        sides: dict[str, dict[str, Tensor]] = {}
        with torch.no_grad():
            for slide, bag in prefetch(self._placed, self.slides):
                out = self.model(bag)  # of which only the logits are kept: the rest is as large as the bag
                main[slide], sides[slide] = out.logits, {side.name: side.logits for side in out.side}
        streams = {name for said in sides.values() for name in said}
        for slide, logits in main.items():
            self.criterion.prime(slide, logits)
            for name in streams:  # a bag too small for a stream of its own (DTFD) stands in with its main prediction
                self.criterion.prime(slide, sides[slide].get(name, logits), name)

    # ---- validation and choice ---------------------------------------------------------------------------------

    def _validate(self, train_loss: float) -> None:
        with nullcontext() if self.average is None else self.average.in_place():
            metrics, loss = validate(
                self.model, self.store, self.job.val, self.task, self.criterion, self.job.val_orders
            )
        metric = metrics[self.task.select_by]
        # What is undefined cannot break a tie, nor be chosen by; if it is what chooses, no step was taken.
        self.at.choose(
            self.recipe,
            float("-inf") if isinstance(metric, Undefined) else float(metric),
            float("inf") if isinstance(loss, Undefined) else loss,
        )
        self.at.history.append(
            history_row(self.at.epoch, train_loss, metrics, loss)
            | {"lr": self.rate(max(0, self.at.step - 1)) * self.factor, "best": self.at.best_epoch == self.at.epoch}
        )

    def _check_selection_is_possible(self) -> None:
        if self.recipe.select_by == "last":
            return
        targets = [case.target.value() for case in self.job.val]
        if self.recipe.select_by == "loss":
            name, value = "loss", self.criterion.validation_loss(targets, torch.zeros(len(targets), self.task.outputs))
        else:
            constant = {name: np.full(len(targets), 1.0 / len(self.task.columns)) for name in self.task.columns}
            name, value = self.task.select_by, self.task.metrics(targets, constant)[self.task.select_by]
        if isinstance(value, Undefined):
            raise RunError(
                f"validation {name} is {value}, so no checkpoint could be chosen",
                where=f"split {self.job.split}",
                hint='Keep the last epoch (`train = { select_by = "last" }`), or leave out what is too rare',
            )

    def result(self) -> FitResult:
        """The weights of the chosen epoch, averaged if the recipe says so, and the way there."""
        best = load_checkpoint(self.root / "checkpoints" / f"epoch-{self.at.best_epoch:04d}")
        tensors = best.tensors("model")
        if self.average is not None:
            tensors |= WeightAverage.mean_of(best.tensors("average"))
        return FitResult(
            tensors,
            self.at.epoch,
            self.at.best_epoch,
            self.at.history,
            [*self.at.notes, *self.precision.notes],
            self.seconds,
            self.precision.used,
        )

    # ---- state -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        root = self.root / "checkpoints"
        parts = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state(),
            "criterion": self.criterion.state(),
            "average": {} if self.average is None else self.average.state(),
        }
        save_checkpoint(root, self.at.epoch, parts, self.at.as_json())
        self._tell_history()
        prune(root, self.at.best_epoch)

    def _tell_history(self) -> None:
        files.publish(self.root / "history.csv", history_csv(self.at.history))

    def _restore(self, found: Checkpoint) -> None:
        self.model.load_state_dict(found.tensors("model"))
        self.optimizer.load_state(found.tensors("optimizer"))
        self.criterion.load_state(found.tensors("criterion"))
        if self.average is not None:
            self.average.load_state(found.tensors("average"))
        self.at = Progression.from_json(found.state)
        self._tell_history()  # it may have died between the checkpoint and this, and no further epoch may come
