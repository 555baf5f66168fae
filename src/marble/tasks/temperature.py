"""One temperature for a classifier's probabilities, found on validation cases (Guo et al. 2017).

    p = softmax(a / T)            a: scores (n, K) whose softmax is the uncalibrated probability
    nll(T) = -mean log p[truth]   convex in 1 / T, so its one minimum is where its slope is 0

A temperature above 1 takes confidence back. It never changes which class is most probable. Where every case is right
the best temperature would be 0 (certainty), and where the scores know less than nothing it would be infinite; neither
says anything about the next case, so then there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax

from marble.tasks.classification_metrics import expected_calibration_error
from marble.tasks.metric import Floats, Ints, Undefined

FOLDS = 20
#: halvings of the interval in which log(1 / T) is searched
STEPS = 80
#: 1 / T is searched between e^-LIMIT and e^LIMIT
LIMIT = 30.0


def fit_temperature(scores: Floats, truth: Ints) -> float | Undefined:
    """The temperature of least `nll` for scores (n, K) of cases of classes truth (n,)."""
    own = scores[np.arange(len(truth)), truth]
    if not len(truth):
        return Undefined("no cases")
    if (own >= scores.max(axis=1)).all():
        return Undefined("every case is right, so the best temperature would be 0")
    if float((scores.mean(axis=1) - own).sum()) >= 0:
        return Undefined("the scores do not tell the classes apart, so the best temperature would be infinite")
    low, high = -LIMIT, LIMIT
    for _ in range(STEPS):
        middle = (low + high) / 2
        p = np.exp(log_softmax(scores * np.exp(middle), axis=1))
        rising = float(((p * scores).sum(axis=1) - own).sum()) > 0  # slope of nll in 1 / T
        low, high = (low, middle) if rising else (middle, high)
    return float(np.exp(-(low + high) / 2))


def mean_nll(scores: Floats, truth: Ints, temperature: float | Floats = 1.0) -> float:
    """Mean negative log-likelihood of the true classes; `temperature` is one for all, or one per case (n,)."""
    shares = np.broadcast_to(np.asarray(temperature, dtype=np.float64), truth.shape)
    return float(-log_softmax(scores / shares[:, None], axis=1)[np.arange(len(truth)), truth].mean())


def calibrate_temperature(scores: Floats, truth: Ints, patients: Sequence[str] | None = None) -> dict[str, Any]:
    """The temperature of validation cases, what it does for them, and whether it is used.

    Fitted and scored on the same cases it could only help. So it is used where it also helps cases it was not fitted
    on: in up to 20 folds, each scored with the temperature of all others (1 where they have none). Cases of one of the
    `patients` (n,) share a fold; without these every case is a patient of its own.
    """
    found = fit_temperature(scores, truth)
    before = mean_nll(scores, truth)
    record: dict[str, Any] = {
        "temperature": 1.0,
        "fitted": None,
        "used": False,
        "reason": "",
        "cases": len(truth),
        "nll": {"before": before, "after": before, "held_out": None},
        "ece": {"before": _ece(scores, truth, 1.0), "after": _ece(scores, truth, 1.0)},
    }
    if isinstance(found, Undefined):
        return record | {"reason": found.reason}
    number: dict[object, int] = {}
    place = [number.setdefault(name, len(number)) for name in (range(len(truth)) if patients is None else patients)]
    fold = np.array(place) % min(FOLDS, len(number))
    others = np.ones(len(truth))
    for k in np.unique(fold):
        fitted = fit_temperature(scores[fold != k], truth[fold != k])
        others[fold == k] = 1.0 if isinstance(fitted, Undefined) else fitted
    held_out = mean_nll(scores, truth, others)
    used = held_out < before
    record |= {
        "temperature": found if used else 1.0,
        "fitted": found,
        "used": used,
        "reason": f"held-out validation NLL {held_out:.4f} against {before:.4f} without",
        "nll": {"before": before, "after": mean_nll(scores, truth, found), "held_out": held_out},
    }
    record["ece"]["after"] = _ece(scores, truth, found)
    return record


def _ece(scores: Floats, truth: Ints, temperature: float) -> float:
    found = expected_calibration_error(truth, np.exp(log_softmax(scores / temperature, axis=1)))
    assert not isinstance(found, Undefined)
    return found
