"""The site-only baseline against brute force and the libraries that people trust."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from lifelines.utils import concordance_index
from sklearn.metrics import r2_score, roc_auc_score

from marble.cohorts import Case, Cohort, holdout, site_report
from marble.cohorts.sites import site_readout
from marble.reports.collect import Repeat
from marble.reports.tables import _sites
from marble.targets import SurvivalTime, Target, TargetKind


def made(task: TargetKind, seed: int, classes: int = 2, strength: float = 2.0) -> Cohort:
    """Patients of ten hospitals, each with a leaning of its own."""
    rng = np.random.default_rng(seed)
    leaning = rng.normal(size=10) * strength
    cases = []
    for i in range(200):
        site = int(rng.integers(10))
        pull = leaning[site] + rng.normal()
        target: Target = f"c{min(classes - 1, max(0, int(pull + classes / 2)))}"
        if task == "survival":
            target = SurvivalTime(float(rng.integers(1, 30)), bool(rng.random() < 1 / (1 + np.exp(-pull))))
        elif task == "regression":
            target = float(pull)
        cases.append(Case(f"p{i}", (f"s{i}",), target, site=f"NA{site}"))
    names = tuple(f"c{k}" for k in range(classes)) if task == "classification" else ()
    return Cohort("made", task, tuple(cases), names)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("task", "classes"), [("classification", 2), ("classification", 3), ("survival", 0), ("regression", 0)]
)
def test_scores_are_those_of_the_libraries(task: TargetKind, classes: int, seed: int) -> None:
    cohort = made(task, seed, classes)
    for split in holdout(cohort, repeats=2, seed=seed):
        train, test = ([cohort.case(p) for p in part] for part in (split.train, split.test))
        readout = site_readout(cohort, train, test)
        targets = [case.target for case in test]
        if task == "regression":
            wanted = r2_score(targets, readout[:, 0])
        elif task == "survival":
            known = [target for target in targets if isinstance(target, SurvivalTime)]
            wanted = concordance_index([t.time for t in known], -readout[:, 0], [t.event for t in known])
        elif classes == 2:
            wanted = roc_auc_score([target == "c1" for target in targets], readout[:, 1])
        else:
            wanted = roc_auc_score(targets, readout, multi_class="ovr", labels=list(cohort.classes))
        report = site_report(cohort, split)
        assert report.score == pytest.approx(wanted, abs=1e-12)
        assert f"{report.metric} {report.score:.3f}" in report.line()


def test_the_readout_is_the_sites_own_share_drawn_towards_all() -> None:
    cases = tuple(
        Case(f"p{i}", (f"s{i}",), label, site=site)
        for i, (label, site) in enumerate(
            [("a", "05"), ("a", "05"), ("b", "NA"), ("b", "05"), ("a", None), ("b", "09")]
        )
    )
    cohort = Cohort("few", "classification", cases, ("a", "b"))
    readout = site_readout(cohort, cases[:3], cases[3:])
    share = 2 / 3  # of class a in training
    np.testing.assert_allclose(readout[:, 0], [(2 + share) / 3, share, share])
    np.testing.assert_allclose(readout.sum(1), 1)


def test_a_split_by_site_leaves_the_baseline_at_chance() -> None:
    cohort = made("classification", 3)
    for split in holdout(cohort, repeats=3, by_site=True):
        report = site_report(cohort, split)
        assert report.shared == ()
        assert (report.covered, report.score) == (0, 0.5)


def test_a_site_that_decides_is_seen() -> None:
    cohort = made("classification", 1, strength=20)
    assert min(site_report(cohort, split).score or 0 for split in holdout(cohort)) > 0.9


def test_no_sites_no_score() -> None:
    cases = tuple(Case(f"p{i}", (f"s{i}",), "ab"[i % 2]) for i in range(30))
    report = site_report(cohort := Cohort("none", "classification", cases, ("a", "b")), holdout(cohort)[0])
    assert report.score is None
    assert "not known" in report.line()


def test_the_caption_of_a_table_says_it() -> None:
    cohort = made("classification", 1)
    splits = holdout(cohort, repeats=3)
    reports = [site_report(cohort, split) for split in splits]
    about = [{"about": {"sites": json.loads(json.dumps(asdict(report)))}} for report in reports]
    text = _sites([cast(Repeat, SimpleNamespace(record=record)) for record in about])
    mean = sum(report.score or 0 for report in reports) / 3
    assert f"the site alone predicts AUC {mean:.3f} (chance 0.5)" in text
    assert "Sites: train 10, " in text
    assert _sites([cast(Repeat, SimpleNamespace(record={"about": {}}))]) == " Sites: not known."
