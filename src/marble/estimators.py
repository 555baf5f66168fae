"""Scikit-learn's doors: estimators over bags, for pipelines, grids and cross-validation.

    MarbleClassifier(drop_rate=0.2).fit(bags, labels).predict_proba(bags)
    GridSearchCV(MarbleClassifier(), {"drop_rate": [0.1, 0.2]}, cv=GroupKFold(5)).fit(bags, labels, groups=patients)

X is a list of bags, or of arrays (N, D) for models that read one level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_is_fitted

from marble.door import Run, fit
from marble.errors import InputError
from marble.experiment.direct import follow_up, text_of
from marble.tasks.survival_metrics import harrell_c

Floats = NDArray[np.float64]


def _listed(X: Any) -> list[Any]:
    """X as a list; what is no list of bags is not taken for one."""
    if isinstance(X, str | Mapping) or not isinstance(X, Iterable):
        raise InputError(f"X is a list of bags or of arrays (N, D), got {type(X).__name__}")
    return list(X)


class _BagEstimator(BaseEstimator):  # type: ignore[misc]
    """What the three have in common: parameters, `fit`, and predictions bag by bag.

    Args:
        model: a name of `list_models()`.
        drop_rate: of models that have it; None leaves the model's own.
        epochs, lr, recipe: of the training; None leaves the recipe's own.
        validation: share of the patients that choose the epoch and calibrate.
        seed: everything random follows from it.
        options: further options of the model and of the training.
    """

    task: ClassVar[str]

    def __init__(
        self,
        model: str = "marble",
        drop_rate: float | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        recipe: str | None = None,
        validation: float = 0.2,
        seed: int = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.drop_rate = drop_rate
        self.epochs = epochs
        self.lr = lr
        self.recipe = recipe
        self.validation = validation
        self.seed = seed
        self.options = options

    def fit(self, X: Sequence[Any], y: Any, groups: Any = None) -> Self:
        """Train on bags X with targets y; `groups` names the patient of every bag."""
        named: dict[str, Any] = {
            "drop_rate": self.drop_rate,
            "epochs": self.epochs,
            "lr": self.lr,
            "recipe": self.recipe,
        }
        chosen = {key: value for key, value in named.items() if value is not None}
        given = {"model": self.model, "task": self.task, "groups": groups, "validation": self.validation} | chosen
        self._check(y, {"bags", "targets", "seed", *given})
        self.run_ = fit(_listed(X), y, seed=self.seed, **given, **(self.options or {}))
        self.n_features_in_ = int(self.run_.record["model"]["dim"])
        return self

    def _check(self, y: Any, taken: set[str]) -> None:
        """Refuse a table for y, which would pass for follow-ups, and options that are parameters of their own."""
        shape = getattr(y, "shape", ())
        if self.task != "survival" and len(shape) > 1:
            hint = "Give one column, as y[:, 0] or table['label']"
            raise InputError(f"y is one target for every bag, got an array {tuple(shape)}", hint=hint)
        if not isinstance(self.options or {}, Mapping):
            raise InputError(f"options are a dictionary, got {type(self.options).__name__}")
        for name in sorted(taken.intersection(self.options or {})):
            hint = "Options are those of the model and of the training that have no parameter here"
            raise InputError(f"`options` holds '{name}', which is given beside it already", hint=hint)

    def _answers(self, X: Sequence[Any]) -> list[Any]:
        check_is_fitted(self, "run_")
        run: Run = self.run_
        return [run.predict(bag) for bag in _listed(X)]

    def _column(self, X: Sequence[Any], name: str) -> Floats:
        return np.array([answer.readout[name] for answer in self._answers(X)])


class MarbleClassifier(ClassifierMixin, _BagEstimator):  # type: ignore[misc]
    """Classes of slides."""

    task: ClassVar[str] = "classification"

    def fit(self, X: Sequence[Any], y: Any, groups: Any = None) -> Self:
        """Train on bags X with classes y; `groups` names the patient of every bag."""
        super().fit(X, y, groups)  # which refuses what has no class
        self.classes_ = np.unique(np.asarray(y))
        names = list(self.run_.record["task"]["classes"])  # text inside a run; outside, what y holds
        self._order = [names.index(text_of(each)) for each in self.classes_.tolist()]
        return self

    def predict_proba(self, X: Sequence[Any]) -> Floats:
        """(n, classes) in the order of `classes_`, calibrated on validation."""
        answers = self._answers(X)
        probabilities = np.array([list(answer.readout.values()) for answer in answers], dtype=np.float64)
        return probabilities.reshape(-1, len(self._order))[:, self._order]

    def predict(self, X: Sequence[Any]) -> NDArray[Any]:
        """(n,) the class that the run calls, by the same rule as `marble predict`."""
        answers = self._answers(X)
        by_name = {text_of(each): each for each in self.classes_.tolist()}
        return np.array([by_name[answer.label] for answer in answers], dtype=self.classes_.dtype)

    def score(self, X: Sequence[Any], y: Any) -> float:
        """Accuracy."""
        return float(accuracy_score(y, self.predict(X)))


class MarbleSurvival(_BagEstimator):
    """Risks of patients; y holds `(time, event)`, or scikit-survival's structured array of (event, time)."""

    task: ClassVar[str] = "survival"

    def predict(self, X: Sequence[Any]) -> Floats:
        """(n,) risks: a larger one means an earlier event; of Cox, 0 is the median training patient."""
        return self._column(X, "risk")

    def score(self, X: Sequence[Any], y: Any) -> float:
        """Harrell's concordance index."""
        if hasattr(y, "columns"):
            raise InputError("y is a table", hint="Give a list of (time, event), as zip(table['time'], table['event'])")
        outcomes = [follow_up(outcome, f"y[{number}]") for number, outcome in enumerate(y)]
        found = harrell_c(self.predict(X), np.array([o.time for o in outcomes]), np.array([o.event for o in outcomes]))
        if not isinstance(found, float):
            raise InputError(f"the concordance of these cases is {found}")
        return found


class MarbleRegressor(RegressorMixin, _BagEstimator):  # type: ignore[misc]
    """Quantities."""

    task: ClassVar[str] = "regression"

    def predict(self, X: Sequence[Any]) -> Floats:
        """(n,) the predicted quantity."""
        return self._column(X, "value")

    def score(self, X: Sequence[Any], y: Any) -> float:
        """R squared."""
        return float(r2_score(y, self.predict(X)))
