"""Survival curves of a Cox model against scikit-survival's and lifelines' Breslow estimates."""

from __future__ import annotations

import numpy as np
import pytest

from marble.errors import InputError, NonFiniteError
from marble.tasks.baseline import BreslowBaseline
from tests.tasks.cohorts_at_random import cohorts


def test_equals_scikit_survival() -> None:
    coxph = pytest.importorskip("sksurv.linear_model.coxph")
    compared = 0
    for cohort in cohorts(100, seed=0):
        if not cohort.event.any() or np.abs(cohort.risk).max() > 30:
            continue
        compared += 1
        ours = BreslowBaseline.fit(cohort.risk, cohort.time, cohort.event)
        theirs = coxph.BreslowEstimator().fit(cohort.risk, cohort.event, cohort.time)
        at = np.unique(cohort.time)
        curves = np.stack([curve(at) for curve in theirs.get_survival_function(cohort.risk)])
        assert ours.survival(cohort.risk, at) == pytest.approx(curves, abs=1e-12)
    assert compared > 50


def test_equals_lifelines_after_a_cox_fit() -> None:
    lifelines = pytest.importorskip("lifelines")
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    x = rng.normal(size=80)
    time = np.round(rng.exponential(np.exp(-x)) * 100 + 1, 2)
    frame = pandas.DataFrame({"x": x, "time": time, "event": rng.random(80) < 0.7})
    fitted = lifelines.CoxPHFitter().fit(frame, "time", "event")
    risk = fitted.predict_log_partial_hazard(frame).to_numpy()
    at = np.sort(time)[::8]
    theirs = fitted.predict_survival_function(frame, times=at).to_numpy().T
    ours = BreslowBaseline.fit(risk, time, frame["event"].to_numpy()).survival(risk, at)
    assert ours == pytest.approx(theirs, abs=1e-9)


def test_equal_risks_give_the_nelson_aalen_curve() -> None:
    baseline = BreslowBaseline.fit([5.0] * 4, [1, 2, 2, 4], [1, 1, 1, 0])
    hazard = np.array([0, 1 / 4, 1 / 4 + 2 / 3, 1 / 4 + 2 / 3])
    assert baseline.survival([5.0], [0.5, 1.0, 2.0, 99.0])[0] == pytest.approx(np.exp(-hazard), abs=1e-14)


def test_huge_risks_stay_within_zero_and_one() -> None:
    baseline = BreslowBaseline.fit([900.0, 0.0, -900.0], [1, 2, 3], [1, 1, 1])
    curves = baseline.survival([900.0, 0.0, -900.0], [0.0, 1.0, 2.0, 3.0])
    assert np.isfinite(curves).all()
    assert ((curves >= 0) & (curves <= 1)).all()
    assert (np.diff(curves, axis=1) <= 0).all()
    assert curves[0, 1] == pytest.approx(np.exp(-1.0))


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="no event"):
        BreslowBaseline.fit([0.0, 1.0], [1, 2], [0, 0])
    with pytest.raises(NonFiniteError, match="risk"):
        BreslowBaseline.fit([0.0, np.nan], [1, 2], [1, 0])
    with pytest.raises(InputError, match="2 outcomes"):
        BreslowBaseline.fit([0.0], [1, 2], [1, 0])
