"""Which class is called: the most probable, or of two the positive one from a threshold on that validation chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from marble.errors import SpecError
from marble.specs import unknown_choice
from marble.tasks import classification_metrics as scores
from marble.tasks.base import Calibration, Decision
from marble.tasks.metric import Floats, Ints, Undefined
from marble.tasks.temperature import calibrate_temperature
from marble.tasks.threshold import choose_threshold, log_odds

DecisionRule: TypeAlias = Literal["argmax", "threshold"]
RULES: tuple[DecisionRule, ...] = get_args(DecisionRule)


@dataclass(frozen=True)
class Calling:
    """How one of `classes` is called.

    Args:
        classes: their names.
        rule: "argmax" or "threshold".
        positive: of two classes the one that is looked for; the second if not named.
    """

    classes: tuple[str, ...]
    rule: DecisionRule
    positive: str | None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise SpecError(unknown_choice("decision", self.rule, list(RULES)))
        if self.rule == "threshold" and len(self.classes) != 2:
            what = f'decision = "threshold" needs two classes, these are {len(self.classes)}'
            raise SpecError(what, hint='Say decision = "argmax", or leave it out')
        if self.positive is None:
            return
        if len(self.classes) != 2:
            raise SpecError(f"positive is for two classes, these are {len(self.classes)}", hint="Leave it out")
        if self.positive not in self.classes:
            raise SpecError(unknown_choice("class for positive", self.positive, list(self.classes)))

    @property
    def positive_index(self) -> int:
        """Of two classes, the place of the positive one."""
        return 1 if self.positive is None else self.classes.index(self.positive)

    @property
    def positive_class(self) -> str:
        return self.classes[self.positive_index]

    def calibrate(self, answers: Floats, truth: Ints, patients: Sequence[str] | None = None) -> dict[str, Any]:
        """The temperature and, if one is wanted, the threshold: from scores (n, K) of validation cases."""
        found: dict[str, Any] = {"decision": self.rule, **calibrate_temperature(answers, truth, patients)}
        if self.rule == "argmax":
            return found
        p = torch.softmax(torch.from_numpy(answers / found["temperature"]), dim=1).numpy()  # as readouts are made
        odds = self._odds(p)
        threshold = choose_threshold(truth == self.positive_index, odds)
        if isinstance(threshold, Undefined):  # said in the run, and the most probable class is called
            return found | {"decision": "argmax", "threshold": None, "threshold_reason": threshold.reason}
        called = self._from(threshold, odds)
        return found | {
            "threshold": threshold,
            "sensitivity": scores.sensitivity(truth, called, self.positive_index),
            "specificity": scores.specificity(truth, called, self.positive_index),
        }

    def called(self, p: Floats, calibration: Calibration) -> Ints:
        """The class (n,) called for each row of probabilities (n, K)."""
        if calls_most_probable(calibration):
            most: Ints = p.argmax(axis=1)
            return most
        return self._from(calibration["threshold"], self._odds(p))

    def decision(self, index: int, calibration: Calibration) -> Decision:
        """The called class with the rule that called it, in words."""
        label = self.classes[index]
        if calls_most_probable(calibration):
            return Decision(label, "the most probable class")
        from_p = float(1 / (1 + np.exp(-calibration["threshold"])))
        rule = f"{self.positive_class} from p = {from_p:.4f} on, chosen on validation"
        return Decision(label, rule, from_p)

    def caption(self, calibrations: Sequence[Calibration]) -> str:
        rule = "Called: the most probable class."
        if self.rule == "threshold":
            chosen = sum(one["decision"] == "threshold" for one in calibrations)
            rule = (
                f"Called: {self.positive_class} from a threshold on that validation chose"
                f" ({chosen} of {len(calibrations)} runs; the others call the most probable class)."
            )
        used = [one for one in calibrations if one["used"]]
        if not used:
            return f"{rule} Probabilities are as the models gave them: no temperature helped on validation."
        before, after = (np.mean([one["ece"][when] for one in used]) for when in ("before", "after"))
        return (
            f"{rule} Probabilities of {len(used)} of {len(calibrations)} runs are calibrated by one temperature, where"
            f" it lowers the held-out validation NLL (validation ECE {before:.3f} before, {after:.3f} after)."
        )

    def _odds(self, p: Floats) -> Floats:
        """Log odds (n,) of the positive class."""
        return log_odds(p[:, self.positive_index], p[:, 1 - self.positive_index])

    def _from(self, threshold: float | Floats, odds: Floats) -> Ints:
        found: Ints = np.where(odds >= threshold, self.positive_index, 1 - self.positive_index)
        return found


def calls_most_probable(calibration: Calibration) -> bool:
    """Whether no threshold decides; without a calibration, none does."""
    return bool(calibration.get("decision", "argmax") == "argmax")


def pooled_threshold(calibrations: Sequence[Calibration]) -> Calibration:
    """The mean of the members' thresholds if all have one; otherwise the most probable class is called."""
    if any(calls_most_probable(one) for one in calibrations):
        return {}
    return {"decision": "threshold", "threshold": float(np.mean([one["threshold"] for one in calibrations]))}


def threshold_per_case(calibrations: Sequence[Calibration]) -> Calibration:
    """A threshold per case; where the most probable class is called, that is even odds."""
    if all(calls_most_probable(one) for one in calibrations):
        return {}
    return {"decision": "threshold", "threshold": np.array([one.get("threshold") or 0.0 for one in calibrations])}
