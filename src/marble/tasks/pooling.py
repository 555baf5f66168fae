"""One prediction of several runs' for the same case: averaged in logits, with how far they lie apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marble.tasks.base import Calibration, Decision, Readout, Task


@dataclass(frozen=True)
class Pooled:
    """What several runs say together.

    Args:
        readout: the pooled one.
        decision: on it, by the members' pooled calibrations.
        calibration: these.
        members: how many there are.
        sd: over the members, of the headline number: the called class's probability, the risk or the value; 0 of one.
    """

    readout: Readout
    decision: Decision
    calibration: Calibration
    members: int
    sd: float


def pool(task: Task, readouts: Sequence[Mapping[str, float]], calibrations: Sequence[Calibration]) -> Pooled:
    """Pool what the members say, each made comparable with the others; of a single one nothing else changes."""
    said = [task.comparable(readout, calibration) for readout, calibration in zip(readouts, calibrations, strict=True)]
    alone = len(said) == 1
    readout = said[0] if alone else task.pool(said)
    calibration = calibrations[0] if alone else task.pool_calibrations(calibrations)
    decision = task.decide(readout, calibration)
    each = [task.headline(one, decision)[1] for one in said]
    return Pooled(readout, decision, calibration, len(readouts), 0.0 if alone else float(np.std(each, ddof=1)))
