"""Patients who are tested in several repeats: counted once, and compared by what means the same in every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sksurv.metrics import concordance_index_censored

from marble.reports.collect import ModelResults, Part, Repeat
from marble.reports.figures import _risk_groups
from marble.reports.together import _case, _cells
from marble.targets import SurvivalTime
from marble.tasks.survival import Survival
from marble.training.results import StoredCase

MEDIANS = (0.0, 50.0, -20.0)  # a partial likelihood knows no zero: every run has its own
PATIENTS = {
    "a": SurvivalTime(2.0, True),
    "b": SurvivalTime(3.0, False),
    "c": SurvivalTime(5.0, True),
    "d": SurvivalTime(7.0, True),
    "e": SurvivalTime(9.0, False),
}
#: patient -> {repeat: risk above that run's training median}
RISKS: dict[str, dict[int, float]] = {
    "a": {0: 2.0, 1: 1.9, 2: -0.1},
    "b": {1: 0.5},
    "c": {0: 0.9, 2: 1.1},
    "d": {0: -0.5, 1: 0.2},
    "e": {2: -1.0},
}


def _repeats() -> list[Repeat]:
    made = []
    for k, median in enumerate(MEDIANS):
        held = [name for name in PATIENTS if k in RISKS[name]]
        risk = np.array([RISKS[name][k] + median for name in held])
        test = Part(tuple(held), tuple(PATIENTS[name] for name in held), {"risk": risk}, np.zeros(len(held)))
        record: dict[str, Any] = {"about": {"repeat": k}, "calibration": {"median_risk": median}}
        made.append(Repeat(Path(str(k)), record, {"test": test}, {}))
    return made


def test_a_patient_of_several_repeats_is_in_one_risk_group_once() -> None:
    found = _risk_groups(Survival(), ModelResults("marble", tuple(_repeats())))
    assert found is not None
    group = {PATIENTS[name]: sum(each > 0 for each in mine.values()) > len(mine) / 2 for name, mine in RISKS.items()}
    assert sum(group.values()) == 3  # a by two votes of three, b, c; d is a draw
    said = {SurvivalTime(float(t), bool(e)): bool(high) for t, e, high in zip(*found, strict=True)}
    assert len(found[0]) == len(PATIENTS)
    assert said == group


def test_risks_of_different_runs_are_compared_from_their_training_medians() -> None:
    task, repeats = Survival(), _repeats()
    cases = []
    for name, target in PATIENTS.items():
        held = [
            (repeats[k], StoredCase("test", name, (name,), target, {"risk": risk + MEDIANS[k]}, 0.0))
            for k, risk in RISKS[name].items()
        ]
        cases.append(_case(task, name, (name,), held))
    time, event = (np.array([getattr(case.target, key) for case in cases]) for key in ("time", "event"))
    risk = np.array([np.mean(list(RISKS[case.case_id].values())) for case in cases])
    found = _cells(task, cases)["c_index"].mean
    assert found == pytest.approx(concordance_index_censored(event, time, risk)[0])
    assert [case.said.readout["risk"] for case in cases] == pytest.approx(risk.tolist())  # and so they are told
    spread = [float(np.std(list(mine.values()), ddof=1)) if len(mine) > 1 else 0.0 for mine in RISKS.values()]
    assert [case.said.sd for case in cases] == pytest.approx(spread)
