"""Several runs' answers as one: the mean of logits, each case by the thresholds of its own members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from marble.tasks.classification import Classification
from marble.tasks.pooling import pool
from marble.tasks.regression import Regression
from marble.tasks.survival import Survival


def test_classes_are_pooled_in_logits() -> None:
    task = Classification(("a", "b", "c"))
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    readouts = [task.readout(one) for one in logits]
    said = pool(task, readouts, [{"decision": "argmax"}] * 4)
    centred = logits - logits.logsumexp(dim=1, keepdim=True)  # a constant per member, which the mean may not depend on
    wanted = torch.softmax(centred.mean(0), 0)
    np.testing.assert_allclose(list(said.readout.values()), wanted.tolist(), rtol=1e-12)
    assert said.decision.label == "abc"[int(wanted.argmax())]
    each = [readout[f"p_{said.decision.label}"] for readout in readouts]
    assert said.sd == pytest.approx(np.std(each, ddof=1))
    assert said.members == 4


@pytest.mark.parametrize(
    ("task", "readout", "calibration"),
    [
        (Classification(("a", "b")), {"p_a": 0.1, "p_b": 0.9}, {}),
        (Survival(), {"risk": -1.25}, {"origin": 7.5, "median_risk": 0.0}),
        (Regression(), {"value": 41.7}, {}),
    ],
)
def test_one_member_is_left_as_it_is(
    task: Classification | Survival | Regression, readout: dict[str, float], calibration: dict[str, float]
) -> None:
    said = pool(task, [readout], [calibration])
    assert said.readout == readout
    assert (said.members, said.sd) == (1, 0.0)


def test_numbers_are_averaged() -> None:
    said = pool(Regression(mean=50, sd=10), [{"value": 40.0}, {"value": 46.0}, {"value": 43.0}], [{}] * 3)
    assert said.readout == {"value": 43.0}
    assert said.sd == pytest.approx(3.0)
    assert said.decision.label is None


def test_risks_of_runs_without_an_origin_count_from_their_training_medians() -> None:
    said = pool(Survival(), [{"risk": 101.0}, {"risk": -48.0}], [{"median_risk": 100.0}, {"median_risk": -50.0}])
    assert said.readout == {"risk": 1.5}
    assert said.sd == pytest.approx(np.std([1.0, 2.0], ddof=1))


def test_every_case_is_called_by_its_own_threshold() -> None:
    task = Classification(("no", "yes"), decision="threshold")
    calibrations: list[dict[str, Any]] = [
        {"decision": "threshold", "threshold": 2.0},
        {"decision": "argmax"},
        {"decision": "threshold", "threshold": -2.0},
        {"decision": "argmax", "threshold": None},
    ]
    p = np.array([0.8, 0.6, 0.2, 0.4])  # log odds 1.39, 0.41, -1.39, -0.41
    readouts = {"p_no": 1 - p, "p_yes": p}
    joined = task.join_calibrations(calibrations)
    one_by_one = [
        task.decide({"p_no": 1 - value, "p_yes": value}, calibration).label
        for value, calibration in zip(p, calibrations, strict=True)
    ]
    assert one_by_one == ["no", "yes", "yes", "no"]
    assert [task.classes[k] for k in task.called(readouts, joined)] == one_by_one
    assert task.join_calibrations([{"decision": "argmax"}] * 2) == {}
