"""What the hospital alone would predict: how much of a result may be the look of a site's stains and scanners.

The site-only baseline knows nothing of a test patient but the site, and of the site what its training patients had:
the shares of the classes, the events per time under observation, the mean of the numbers. Sites of few patients are
drawn towards all training patients, and a site without any gets their value. A model that does not beat this baseline
may have learned to tell hospitals apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marble.cohorts.cohort import Case, Cohort
from marble.cohorts.splits import Split
from marble.targets import SurvivalTime

Numbers = NDArray[np.float64]
METRICS = {"classification": "AUC", "survival": "C-index", "regression": "R2"}
_WEIGHT = 1.0  # patients' worth of all training patients in a site's own value


@dataclass(frozen=True)
class SiteReport:
    """The sites of one split, and how well the site alone predicts its test patients.

    Args:
        sites: by part; patients without a site are not counted.
        shared: sites with training and with test patients.
        covered: share of test patients whose site has training patients.
        score: of the site-only baseline, in the unit of `metric`; None where it is not defined.
        chance: what a baseline that tells nothing scores.
    """

    sites: dict[str, tuple[str, ...]]
    shared: tuple[str, ...]
    covered: float
    metric: str
    score: float | None
    chance: float

    def line(self) -> str:
        counts = ", ".join(f"{part} {len(names)}" for part, names in self.sites.items())
        if not any(self.sites.values()):
            return "sites: not known, so what they alone would predict is not either"
        score = "undefined" if self.score is None else f"{self.score:.3f}"
        return (
            f"sites: {counts}, {len(self.shared)} in both train and test; "
            f"the site alone predicts {self.metric} {score} (chance {self.chance:g})"
        )


def site_report(cohort: Cohort, split: Split) -> SiteReport:
    """The sites of a split's parts and the score of the site-only baseline on its test patients."""
    parts = {part: [cohort.case(patient) for patient in patients] for part, patients in split.parts()}
    sites = {part: tuple(sorted({c.site for c in cases if c.site is not None})) for part, cases in parts.items()}
    shared = set(sites["train"]) & set(sites["test"])
    covered = sum(case.site in shared for case in parts["test"]) / max(1, len(parts["test"]))
    readout = site_readout(cohort, parts["train"], parts["test"])
    score = _score(cohort, parts["test"], readout) if any(sites.values()) else None
    chance = 0.0 if cohort.task == "regression" else 0.5
    return SiteReport(sites, tuple(sorted(shared)), covered, METRICS[cohort.task], score, chance)


def site_readout(cohort: Cohort, train: Sequence[Case], test: Sequence[Case]) -> Numbers:
    """(N, K) what the site says of each test patient: shares of the classes, the event rate, or the mean (K = 1)."""
    gained, weight = (np.array(part, dtype=np.float64) for part in zip(*(_evidence(c, cohort) for c in train)))
    overall = gained.sum(0) / weight.sum(0)  # (K,)
    unit = weight.mean(0)  # one patient's worth: 1, or the mean time under observation
    homes = np.array([case.site or "" for case in train])
    rows = []
    for case in test:
        here = homes == case.site
        rows.append((gained[here].sum(0) + _WEIGHT * unit * overall) / (weight[here].sum(0) + _WEIGHT * unit))
    return np.array(rows)


def _evidence(case: Case, cohort: Cohort) -> tuple[list[float], list[float]]:
    """What a patient adds to the site's sums: (events, time), (value, 1), or a count for each class."""
    if isinstance(case.target, SurvivalTime):
        return [float(case.target.event)], [max(case.target.time, 1e-9)]
    if isinstance(case.target, float):
        return [case.target], [1.0]
    return [float(name == case.target) for name in cohort.classes], [1.0] * len(cohort.classes)


def _score(cohort: Cohort, test: Sequence[Case], readout: Numbers) -> float | None:
    if cohort.task == "survival":
        return _c_index([case.target for case in test if isinstance(case.target, SurvivalTime)], readout[:, 0])
    if cohort.task == "regression":
        values = np.array([case.target for case in test], dtype=np.float64)
        spread = ((values - values.mean()) ** 2).sum()
        return None if spread == 0 else float(1 - ((values - readout[:, 0]) ** 2).sum() / spread)
    truth = np.array([cohort.classes.index(str(case.target)) for case in test])
    wanted = range(1, 2) if len(cohort.classes) == 2 else range(len(cohort.classes))
    if any(not 0 < (truth == k).sum() < len(truth) for k in wanted):
        return None
    return float(np.mean([_auc(truth == k, readout[:, k]) for k in wanted]))


def _auc(positive: NDArray[np.bool_], score: Numbers) -> float:
    """The share of (positive, negative) pairs in the right order; ties count half."""
    gap = score[positive][:, None] - score[~positive]
    return float(((gap > 0) + 0.5 * (gap == 0)).mean())


def _c_index(outcomes: Sequence[SurvivalTime], risk: Numbers) -> float | None:
    """Harrell's: the share of comparable pairs whose earlier event has the higher risk; ties of risk count half."""
    time = np.array([outcome.time for outcome in outcomes])
    event = np.array([outcome.event for outcome in outcomes], dtype=bool)
    earlier = event[:, None] & ((time[:, None] < time) | ((time[:, None] == time) & ~event))
    gap = risk[:, None] - risk
    return float((((gap > 0) + 0.5 * (gap == 0)) * earlier).sum() / earlier.sum()) if earlier.any() else None
