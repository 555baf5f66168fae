"""The hazard ratio against lifelines, ties and all."""

from __future__ import annotations

import numpy as np
import pytest

from marble.reports.hazard import HazardRatio, hazard_ratio
from marble.tasks.metric import Undefined

lifelines = pytest.importorskip("lifelines")
pandas = pytest.importorskip("pandas")


@pytest.mark.parametrize("seed", range(12))
def test_ratio_and_interval_are_those_of_lifelines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 120))
    high = rng.random(n) < rng.uniform(0.3, 0.7)
    time = rng.exponential(np.where(high, 8.0, 14.0))
    time = np.ceil(time) if seed % 2 else time + 0.01  # whole months: many ties
    event = rng.random(n) < 0.7
    found = hazard_ratio(time, event, high)
    assert isinstance(found, HazardRatio)
    fitter = lifelines.CoxPHFitter()
    fitter.fit(
        pandas.DataFrame({"t": time, "e": event, "high": high.astype(float)}), "t", "e",
        fit_options={"precision": 1e-13},
    )  # fmt: skip
    low, up = np.exp(fitter.confidence_intervals_.loc["high"].to_numpy())
    assert found.ratio == pytest.approx(float(fitter.hazard_ratios_["high"]), rel=1e-6)
    assert (found.low, found.high) == pytest.approx((low, up), rel=1e-6)


def test_what_has_no_ratio_says_why() -> None:
    time, event = np.arange(1.0, 9.0), np.ones(8, bool)
    half = np.arange(8) < 4
    assert hazard_ratio(time, event, np.ones(8, bool)) == Undefined("one group only")
    assert hazard_ratio(time, half, half) == Undefined("a group without an event")
    apart = hazard_ratio(time, event, half)  # all of one group before all of the other: the ratio has no end
    assert isinstance(apart, Undefined)
