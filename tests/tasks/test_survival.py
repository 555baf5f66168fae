"""The survival task and the types shared by all tasks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from marble.errors import InputError, NonFiniteError, SpecError
from marble.tasks.base import Outcome, Target, Undefined
from marble.tasks.cox import CoxBank, CoxGroup
from marble.tasks.discrete import DiscreteCriterion
from marble.tasks.survival import Survival
from marble.tasks.survival_metrics import harrell_c, time_dependent_auc, uno_c

TARGETS: dict[str, Target] = {f"s{k}": Outcome(float(k), k % 3 != 0) for k in range(1, 13)}
PATIENTS = {slide: slide for slide in TARGETS}


def test_the_loss_decides_outputs_columns_and_criterion() -> None:
    assert (Survival().outputs, Survival().columns) == (1, ("risk",))
    assert isinstance(Survival().criterion(TARGETS, PATIENTS), CoxBank)
    assert isinstance(Survival(risk_set="group").criterion(TARGETS, PATIENTS), CoxGroup)
    discrete = Survival(loss="nll", bins=3)
    assert (discrete.outputs, discrete.columns) == (3, ("risk", "survival_1", "survival_2", "survival_3"))
    assert isinstance(discrete.criterion(TARGETS, PATIENTS), DiscreteCriterion)


def test_readouts() -> None:
    assert Survival().readout(torch.tensor([0.25])) == {"risk": 0.25}
    stored = Survival(loss="nll", bins=2).readout(torch.zeros(2))
    assert stored == {"risk": -0.75, "survival_1": 0.5, "survival_2": 0.25}
    with pytest.raises(NonFiniteError):
        Survival().readout(torch.tensor([torch.inf]))
    with pytest.raises(InputError, match=r"\(1,\)"):
        Survival().readout(torch.zeros(4))


def test_a_larger_hazard_is_a_larger_risk() -> None:
    task = Survival(loss="nll")
    assert task.readout(torch.full((4,), 1.0))["risk"] > task.readout(torch.full((4,), -1.0))["risk"]


def test_metrics_are_those_of_the_cases() -> None:
    rng = np.random.default_rng(0)
    time, event, risk = rng.exponential(10, 50), rng.random(50) < 0.5, rng.normal(size=50)
    found = Survival().metrics([Outcome(float(t), bool(e)) for t, e in zip(time, event, strict=True)], {"risk": risk})
    _, auc = time_dependent_auc(risk, time, event, np.quantile(time[event], [0.25, 0.5, 0.75]))
    assert found == {
        "c_index": harrell_c(risk, time, event),
        "c_index_ipcw": uno_c(risk, time, event),
        "auc_td": auc,
    }
    assert Survival.select_by in found
    assert all(isinstance(value, float) for value in found.values())


def test_metrics_without_events_are_undefined() -> None:
    found = Survival().metrics([Outcome(1.0, False), Outcome(2.0, False)], {"risk": [0.1, 0.2]})
    assert [str(value) for value in found.values()] == [
        "undefined (no comparable pair)",
        "undefined (no comparable pair)",
        "undefined (no event)",
    ]
    assert all(isinstance(value, Undefined) for value in Survival().metrics([], {"risk": []}).values())


def test_nan_risk_is_refused() -> None:
    with pytest.raises(NonFiniteError, match=r"risk: 1 of 2 .* index 1"):
        Survival().metrics([Outcome(1.0, True), Outcome(2.0, True)], {"risk": [0.1, np.nan]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "coxx"}, "did you mean 'cox'"),
        ({"risk_set": "batch"}, "Valid: bank, group"),
        ({"bins": 1}, "at least 2"),
        ({"alpha": 1.0}, "below 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Survival(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("time", [-1.0, float("nan"), float("inf")])
def test_an_outcome_needs_a_time(time: float) -> None:
    with pytest.raises(InputError, match="follow-up time"):
        Outcome(time, True)


@pytest.mark.parametrize("event", [1, 0, "1", None])
def test_an_outcome_needs_a_decoded_event(event: object) -> None:
    with pytest.raises(InputError, match="either way round"):
        Outcome(1.0, event)  # type: ignore[arg-type]


def test_metrics_need_no_torch_and_no_oracle() -> None:
    code = (
        "import sys; import marble.tasks.survival_metrics, marble.tasks.classification_metrics, marble.tasks.baseline;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'lifelines', 'sksurv')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
