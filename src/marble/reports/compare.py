"""Every cell of the results table: mean, SD, interval, and the paired test against the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, stdev

import numpy as np

from marble.reports.collect import ModelResults, Repeat, Results
from marble.reports.statistics import (
    Draws,
    Interval,
    Paired,
    PatientBootstrap,
    bootstrap_interval,
    delong_test,
    holm,
    paired_bootstrap,
)
from marble.tasks.metric import Bools, Floats, Undefined
from marble.tasks.weighted import WeightedMetric


@dataclass(frozen=True)
class Cell:
    """One metric of one model over all repeats."""

    mean: float | Undefined
    sd: float | None = None  # over repeats; None for a single one
    interval: Interval | None = None  # None where the metric has no fast weighted form, or too few samples a value
    left_out: float = 0.0  # share of repeats without a value, over all samples behind the interval
    runs: int = 0


@dataclass(frozen=True)
class ModelRow:
    """One model of the table."""

    model: ModelResults
    cells: dict[str, Cell]
    tests: dict[str, Paired] = field(default_factory=dict)  # against the reference
    corrected: dict[str, float] = field(default_factory=dict)  # Holm, over all models of the table


@dataclass(frozen=True)
class Comparison:
    """The whole table."""

    results: Results
    rows: tuple[ModelRow, ...]
    tested: tuple[str, ...]  # the metrics with a paired test


def compare(results: Results) -> Comparison:
    """Work out all cells and tests."""
    patients = [repeat.test.patients for repeat in results.models[0].repeats]
    bootstrap = PatientBootstrap(patients)
    weighted = {model.key: [_weighted(results, repeat) for repeat in model.repeats] for model in results.models}
    draws = {
        key: {name: bootstrap.means([repeat[name] for repeat in repeats]) for name in repeats[0]}
        for key, repeats in weighted.items()
    }
    tested = results.task.tested
    rows = [ModelRow(model, {name: _cell(results, model, name, draws[model.key]) for name in results.metric_names})
            for model in results.models]  # fmt: skip
    reference = results.reference
    if reference is None or len(rows) < 2:
        return Comparison(results, tuple(rows), ())
    others = [row for row in rows if row.model is not reference]
    home = next(row for row in rows if row.model is reference)
    for name in tested:
        found = {row.model.key: _test(results, home, row, name, draws) for row in others}
        known = {key: paired for key, paired in found.items() if paired is not None}
        for (key, paired), p in zip(known.items(), holm([paired.p for paired in known.values()]), strict=True):
            row = next(one for one in others if one.model.key == key)
            row.tests[name], row.corrected[name] = paired, p
    return Comparison(results, tuple(rows), tested)


def _cell(results: Results, model: ModelResults, name: str, draws: dict[str, Draws]) -> Cell:
    values = model.values(name)
    undefined = [value for value in values if isinstance(value, Undefined)]
    if undefined:
        return Cell(undefined[0], runs=len(values))
    numbers = [float(value) for value in values if not isinstance(value, Undefined)]
    mean = fmean(numbers)
    sd = stdev(numbers) if len(numbers) > 1 else None
    if name not in draws:
        return Cell(mean, sd, runs=len(numbers))
    drawn = draws[name].around(mean) if name in results.task.inflated else draws[name]
    return Cell(mean, sd, bootstrap_interval(mean, drawn), drawn.left_out, len(numbers))


def _test(
    results: Results, home: ModelRow, other: ModelRow, name: str, draws: dict[str, dict[str, Draws]]
) -> Paired | None:
    """Reference minus the other; DeLong for a binary AUC, bootstrap over the same patients otherwise."""
    ours, theirs = home.cells[name].mean, other.cells[name].mean
    if isinstance(ours, Undefined) or isinstance(theirs, Undefined):
        return None
    patients = [repeat.test.patients for repeat in home.model.repeats]
    if name == "auc" and all(_two_of_each(results, repeat) for repeat in home.model.repeats):
        repeats = [
            (*_binary(results, a), _binary(results, b)[1])
            for a, b in zip(home.model.repeats, other.model.repeats, strict=True)
        ]
        paired: Paired | None = delong_test(repeats, patients)
    else:
        paired = paired_bootstrap(ours - theirs, draws[home.model.key][name], draws[other.model.key][name])
    return None if paired is None else paired.of_patients(len({one for names in patients for one in names}))


def _two_of_each(results: Results, repeat: Repeat) -> bool:
    """Two patients with each of the two answers."""
    asked = results.task.binary(repeat.test.targets, repeat.test.readouts)
    if asked is None:
        return False
    patients = np.array(repeat.test.patients)
    return all(len(set(patients[side])) >= 2 for side in (asked[0], ~asked[0]))


def _binary(results: Results, repeat: Repeat) -> tuple[Bools, Floats]:
    asked = results.task.binary(repeat.test.targets, repeat.test.readouts)
    assert asked is not None
    return asked


def _weighted(results: Results, repeat: Repeat) -> dict[str, WeightedMetric]:
    return results.task.weighted_metrics(repeat.test.targets, repeat.test.readouts, repeat.calibration)
