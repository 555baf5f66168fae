"""Figures of a regression show the stored numbers, and say the table's R2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.metrics import r2_score

from marble.reports.cases import errors, extremes
from marble.reports.collect import ModelResults, Results, collect
from marble.reports.compare import Comparison, compare
from marble.reports.figures import all_figures
from marble.reports.learning import learning_curves
from marble.reports.numbers import residuals, scatter
from marble.reports.page import write_comparison
from marble.reports.panels import FULL_IN, across
from marble.training.run import execute
from tests.training.jobs import plan

MODELS = '[{ name = "abmil", hidden = 16, label = "abmil" }, { name = "mean", hidden = 8, label = "mean" }]'


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("quantity")
    for planned in plan(folder, "quantity", MODELS, epochs=1):
        execute(planned)
    found = compare(collect(folder / "out" / "tiny"))
    return replace(found, results=replace(found.results, unit="µm"))


def _stored(results: Results, model: ModelResults) -> tuple[list[float], list[float]]:
    pairs = [results.task.numbers(repeat.test.targets, repeat.test.readouts) for repeat in model.repeats]
    truth = [float(value) for pair in pairs if pair is not None for value in pair[0]]
    return truth, [float(value) for pair in pairs if pair is not None for value in pair[1]]


def _dots(figure: Figure, place: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(figure.axes[place].collections[0].get_offsets(), dtype=np.float64)


def test_every_test_case_is_a_dot_where_it_belongs(comparison: Comparison) -> None:
    scattered = scatter(comparison)
    assert scattered is not None
    assert scattered.get_figwidth() <= FULL_IN
    for place, row in enumerate(comparison.rows):
        truth, predicted = _stored(comparison.results, row.model)
        axis = scattered.axes[place]
        np.testing.assert_allclose(_dots(scattered, place), np.stack([truth, predicted], 1))
        ends = np.asarray(axis.lines[0].get_xydata())
        np.testing.assert_array_equal(ends[:, 0], ends[:, 1])  # the line on which both are equal
        assert axis.get_xlim() == axis.get_ylim()
        assert axis.get_xlabel() == "True value (µm)"
        per_repeat = [
            r2_score(*pair)
            for repeat in row.model.repeats
            if (pair := comparison.results.task.numbers(repeat.test.targets, repeat.test.readouts)) is not None
        ]
        title = axis.get_title().replace("\n", " ")
        assert f"R2 {np.mean(per_repeat):.3f}, n = {len(truth)}" in title
    low, high = scattered.axes[0].get_xlim()
    assert all(
        low < value < high for model in comparison.results.models for value in _stored(comparison.results, model)[1]
    )


def test_residuals_are_predicted_minus_true(comparison: Comparison) -> None:
    figure = residuals(comparison)
    assert figure is not None
    for place, row in enumerate(comparison.rows):
        truth, predicted = map(np.array, _stored(comparison.results, row.model))
        error = predicted - truth
        np.testing.assert_allclose(_dots(figure, place), np.stack([predicted, error], 1))
        title = figure.axes[place].get_title().replace("\n", " ")
        assert f"mean {error.mean():+.3g}, 1.96 SD {1.96 * error.std(ddof=1):.3g}" in title


def test_a_cohort_of_classes_has_neither(tmp_path: Path) -> None:
    for planned in plan(tmp_path, "burden", '[{ name = "mean", hidden = 8 }]', epochs=1)[:1]:
        execute(planned)
    assert not {"scatter", "residuals"} & set(all_figures(compare(collect(tmp_path / "out" / "tiny"))))


def test_the_page_shows_the_cases_farthest_off(comparison: Comparison, tmp_path: Path) -> None:
    page = write_comparison(comparison, tmp_path).read_text()
    assert (tmp_path / "scatter.png").exists()
    assert (tmp_path / "residuals.svg").exists()
    wrong = errors(comparison.results)
    assert {case.model for case in wrong} == {comparison.results.models[0].key}
    sizes = [abs(case.miss or 0.0) for case in wrong]
    assert sizes == sorted(sizes, reverse=True)
    truth, predicted = map(np.array, _stored(comparison.results, comparison.results.models[0]))
    assert sizes[0] == pytest.approx(np.abs(predicted - truth).max())
    worst = wrong[0]
    assert f"true value <b>{worst.truth}</b>, said <b>{worst.said}</b> (error {worst.miss:+.3g} µm)" in page
    assert worst.truth.endswith(" µm")
    assert worst.said.endswith(" µm")
    assert extremes(comparison.results)[0].number == predicted.max()


def test_no_panel_stands_alone_in_its_row() -> None:
    for count in range(2, 13):
        columns = across(count)
        assert columns <= 4
        assert count % columns != 1, count


def test_solved_models_have_no_learning_curve(tmp_path: Path) -> None:
    planned = plan(
        tmp_path, "quantity", '[{ name = "mean", hidden = 8, label = "mean" }]', epochs=2, baselines='["tiles"]'
    )
    for one in planned[:2]:
        execute(one)
    figure = learning_curves(compare(collect(tmp_path / "out" / "tiny")))
    assert figure is not None
    assert [axis.get_title() for axis in figure.axes] == ["mean"]
