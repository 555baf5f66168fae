"""A metric under bootstrap weights equals the plain metric of the sample written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from marble.tasks import weighted
from marble.tasks.classification import Classification
from marble.tasks.metric import Undefined
from marble.tasks.survival_metrics import harrell_c


def _cases(seed: int, n: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, n)
    probability = rng.dirichlet(np.ones(classes), n).round(1)  # rounded, so that there are ties
    weights = rng.multinomial(n, np.full(n, 1 / n), size=3).astype(float)
    return truth, probability, weights


def _written_out(weights: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(weights)), weights.astype(int))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 25), classes=st.integers(2, 4))
def test_classification(seed: int, n: int, classes: int) -> None:
    truth, probability, weights = _cases(seed, n, classes)
    called = probability.argmax(axis=1)
    labels = list(range(classes))
    task = Classification(tuple("abcd"[:classes]))
    targets, readouts = [task.classes[k] for k in truth], dict(zip(task.columns, probability.T, strict=True))
    ours = {name: f(weights) for name, f in task.weighted_metrics(targets, readouts, {}).items()}
    for b, sample in enumerate(map(_written_out, weights)):
        t, p, c = truth[sample], probability[sample], called[sample]
        present = set(t.tolist()) == set(labels)
        plain = task.metrics([targets[i] for i in sample], {name: p[:, k] for k, name in enumerate(task.columns)})
        assert ours["ece"][b] == pytest.approx(plain["ece"], abs=1e-12)
        assert ours["accuracy"][b] == pytest.approx(sk.accuracy_score(t, c), abs=1e-12)
        if not present:
            assert np.isnan(ours["auc"][b])
            assert np.isnan(ours["balanced_accuracy"][b])
            assert np.isnan(ours["f1"][b])
            continue
        one_vs_rest = [sk.roc_auc_score(t == k, p[:, k]) for k in labels]
        area = one_vs_rest[1] if classes == 2 else np.mean(one_vs_rest)
        assert ours["auc"][b] == pytest.approx(area, abs=1e-12)
        assert ours["balanced_accuracy"][b] == pytest.approx(sk.balanced_accuracy_score(t, c), abs=1e-12)
        assert ours["f1"][b] == pytest.approx(sk.f1_score(t, c, labels=labels, average="macro"), abs=1e-12)
        kappa = sk.cohen_kappa_score(t, c, labels=labels, weights="quadratic")
        assert ours["kappa"][b] == pytest.approx(kappa, abs=1e-12, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 25))
def test_concordance(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    time, event = rng.integers(0, 8, n).astype(float), rng.random(n) < 0.5
    risk = rng.normal(size=n).round(1)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=3).astype(float)
    ours = weighted.concordance(risk, time, event, weights)
    for value, sample in zip(ours, map(_written_out, weights), strict=True):
        plain = harrell_c(risk[sample], time[sample], event[sample])
        if isinstance(plain, Undefined):
            assert np.isnan(value)
        else:
            assert value == pytest.approx(plain, abs=1e-12)
