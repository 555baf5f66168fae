"""What `marble route` is asked for is checked before anything is learned or written."""

from __future__ import annotations

import math
from typing import Any

import pytest

from marble.errors import InputError
from marble.training.routing import calibrate

NOBODY: Any = None  # a run and a store that are not reached


@pytest.mark.parametrize("tolerance", [-0.01, math.nan, math.inf])
def test_a_tolerance_that_is_no_loss_is_refused(tolerance: float) -> None:
    with pytest.raises(InputError, match="tolerance must not be negative, nor infinite"):
        calibrate(NOBODY, NOBODY, tolerance)


@pytest.mark.parametrize("budget", [0.0, -0.5, 1.5, math.nan, math.inf])
def test_a_budget_that_is_no_share_is_refused(budget: float) -> None:
    with pytest.raises(InputError, match="budget must be more than 0 and at most 1"):
        calibrate(NOBODY, NOBODY, 0.01, [budget])
