"""The survival task and the types shared by all tasks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from marble.errors import InputError, NonFiniteError, SpecError
from marble.targets import SurvivalTime, Target
from marble.tasks.base import Scored
from marble.tasks.baseline import BreslowBaseline
from marble.tasks.cox import CoxBank, CoxGroup
from marble.tasks.discrete import DiscreteCriterion, quantile_edges, survival_at
from marble.tasks.metric import Undefined, outcome_arrays
from marble.tasks.survival import Survival
from marble.tasks.survival_metrics import harrell_c, time_dependent_auc, uno_c

TARGETS: dict[str, Target] = {f"s{k}": SurvivalTime(float(k), k % 3 != 0) for k in range(1, 13)}
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
    found = Survival().metrics(
        [SurvivalTime(float(t), bool(e)) for t, e in zip(time, event, strict=True)], {"risk": risk}
    )
    _, auc = time_dependent_auc(risk, time, event, np.quantile(time[event], [0.25, 0.5, 0.75]))
    assert found == {
        "c_index": harrell_c(risk, time, event),
        "c_index_ipcw": uno_c(risk, time, event),
        "auc_td": auc,
    }
    assert Survival.select_by in found
    assert all(isinstance(value, float) for value in found.values())


def test_metrics_without_events_are_undefined() -> None:
    found = Survival().metrics([SurvivalTime(1.0, False), SurvivalTime(2.0, False)], {"risk": [0.1, 0.2]})
    assert [str(value) for value in found.values()] == [
        "undefined (no comparable pair)",
        "undefined (no comparable pair)",
        "undefined (no event)",
    ]
    assert all(isinstance(value, Undefined) for value in Survival().metrics([], {"risk": []}).values())


def _cohort(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, list[Target]]:
    rng = np.random.default_rng(seed)
    time, event = rng.exponential(10, n), rng.random(n) < 0.6
    return time, event, [SurvivalTime(float(t), bool(e)) for t, e in zip(time, event, strict=True)]


def _brier_by_hand(curves: np.ndarray, time: np.ndarray, event: np.ndarray, at: np.ndarray) -> float:
    """scikit-survival's score, with the cases' own censoring."""
    sksurv = pytest.importorskip("sksurv.metrics")
    outcomes = np.array(list(zip(event, time, strict=True)), dtype=[("event", bool), ("time", float)])
    return float(sksurv.integrated_brier_score(outcomes, outcomes, curves, at))


def test_integrated_brier_of_a_cox_model() -> None:
    rng = np.random.default_rng(1)
    (train_time, train_event, train), (time, event, test) = _cohort(2, 80), _cohort(3, 60)
    train_risk, risk = rng.normal(size=80) - 0.05 * train_time, rng.normal(size=60) - 0.05 * time
    found = Survival().integrated_brier(test, {"risk": risk}, train, {"risk": train_risk})
    first, last = np.quantile(time[event], [0.1, 0.9])
    at = np.linspace(first, last, 50)
    curves = np.array([
        [np.exp(-np.exp(r) * sum(1 / np.exp(train_risk[train_time >= s]).sum()
                                 for s in train_time[train_event] if s <= t)) for t in at]
        for r in risk
    ])  # fmt: skip
    assert curves == pytest.approx(BreslowBaseline.fit(train_risk, train_time, train_event).survival(risk, at))
    assert found == pytest.approx(_brier_by_hand(curves, time, event, at), abs=1e-12)
    shuffled = Survival().integrated_brier(test, {"risk": rng.permutation(risk)}, train, {"risk": train_risk})
    assert isinstance(found, float)
    assert isinstance(shuffled, float)
    assert found < shuffled  # lower is better, and these risks know something


def test_integrated_brier_in_discrete_time() -> None:
    task = Survival(loss="nll")
    rng = np.random.default_rng(1)
    (train_time, train_event, train), (time, event, test) = _cohort(2, 80), _cohort(3, 60)
    past = np.cumprod(rng.uniform(0.5, 0.95, (60, 4)), axis=1)
    readouts = {"risk": -past.sum(axis=1)} | {f"survival_{k + 1}": past[:, k] for k in range(4)}
    found = task.integrated_brier(test, readouts, train, {})
    first, last = np.quantile(time[event], [0.1, 0.9])
    at = np.linspace(first, last, 50)
    edges = [0.0, *np.quantile(train_time[train_event], [0.25, 0.5, 0.75]), train_time.max()]
    curves = np.ones((60, 50))
    for case, when in np.ndindex(60, 50):
        values = [1.0, *past[case]]
        bin_ = min(3, sum(at[when] >= edge for edge in edges[1:]))
        share = min(1.0, (at[when] - edges[bin_]) / (edges[bin_ + 1] - edges[bin_]))
        curves[case, when] = values[bin_] + share * (values[bin_ + 1] - values[bin_])
    assert found == pytest.approx(_brier_by_hand(curves, time, event, at), abs=1e-12)


def test_a_discrete_curve_goes_through_what_was_predicted() -> None:
    (time, event, _), past = _cohort(2, 80), np.array([[0.9, 0.5, 0.4, 0.1]])
    edges = quantile_edges(time, event, 4)
    at = np.array([0.0, *edges, time.max(), 2 * time.max()])
    assert survival_at(past, edges, float(time.max()), at).tolist() == [[1.0, 0.9, 0.5, 0.4, 0.1, 0.1]]
    assert survival_at(past[:0], edges, 1.0, at).shape == (0, 6)


def test_integrated_brier_is_undefined_with_a_reason() -> None:
    train: list[Target] = [SurvivalTime(1.0, True), SurvivalTime(3.0, False)]
    risks = {"risk": [0.0, 0.0]}

    def said(test: list[Target], train: list[Target]) -> str:
        return str(Survival().integrated_brier(test, risks, train, risks))

    assert (
        said([SurvivalTime(1.0, False), SurvivalTime(2.0, False)], train)
        == "undefined (fewer than two distinct event times)"
    )
    assert (
        said([SurvivalTime(2.0, True), SurvivalTime(2.0, True)], train)
        == "undefined (fewer than two distinct event times)"
    )
    never: list[Target] = [SurvivalTime(1.0, False), SurvivalTime(2.0, False)]
    assert said(train, never) == "undefined (no event among the training patients)"


def test_nan_risk_is_refused() -> None:
    with pytest.raises(NonFiniteError, match=r"risk: 1 of 2 .* index 1"):
        Survival().metrics([SurvivalTime(1.0, True), SurvivalTime(2.0, True)], {"risk": [0.1, np.nan]})


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
        SurvivalTime(time, True)


@pytest.mark.parametrize("event", [1, 0, "1", None])
def test_an_outcome_needs_a_decoded_event(event: object) -> None:
    with pytest.raises(InputError, match="either way round"):
        SurvivalTime(1.0, event)  # type: ignore[arg-type]


def test_metrics_need_no_torch_and_no_oracle() -> None:
    code = (
        "import sys; import marble.tasks.survival_metrics, marble.tasks.classification_metrics, marble.tasks.baseline;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'lifelines', 'sksurv')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_time_bins_of_a_report_are_those_of_training_where_slides_are_scored() -> None:
    """Bins are cut on patients; a patient of nine slides must not draw them to its own time."""
    task, rng = Survival(loss="nll", bins=3), np.random.default_rng(0)
    slides = [f"s{k}" for k in range(1, 13) for _ in range(9 if k == 11 else 1)]
    train = [TARGETS[slide] for slide in slides]
    trained = task.criterion({f"{k}": one for k, one in enumerate(train)}, {f"{k}": s for k, s in enumerate(slides)})
    assert isinstance(trained, DiscreteCriterion)
    assert np.array_equal(trained.edges, quantile_edges(*outcome_arrays(list(TARGETS.values())), 3))
    logits = torch.from_numpy(rng.normal(size=(12, 3)))
    said = [task.readout(row) for row in logits]
    readouts = {name: np.array([one[name] for one in said]) for name in task.columns}
    test = Scored(list(TARGETS.values()), readouts)
    by_slide, by_patient, as_if_alone = (
        task.report_metrics(test, train_part, {})["ibs"]
        for train_part in (
            Scored(train, {}, slides),
            Scored(list(TARGETS.values()), {}, list(TARGETS)),
            Scored(train, {}),
        )
    )
    assert by_slide == by_patient
    assert by_slide != pytest.approx(as_if_alone, rel=1e-3)
