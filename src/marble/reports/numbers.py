"""Predicted numbers beside the true ones, and how far they are off: figures of a regression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marble.reports.collect import ModelResults, Results
from marble.reports.compare import Comparison, ModelRow
from marble.reports.panels import FULL_IN, HALF_IN, across, folded, panels, styled
from marble.tasks.metric import Floats, Undefined

#: of the dots: many lie upon each other
_DOT: dict[str, Any] = {"s": 16, "alpha": 0.55, "linewidths": 0}


def scatter(comparison: Comparison) -> Figure | None:
    """A panel per model: predicted against true, on axes of one range, with the line on which both are equal."""
    found = _all_numbers(comparison.results)
    if found is None:
        return None
    ends = np.concatenate([np.concatenate(pair) for pair in found])
    limits = _padded(float(ends.min()), float(ends.max()))
    unit = _in(comparison.results.unit)
    figure, axes, width = _panels(len(found))
    for axis, (style, model), row, (truth, predicted) in _each(axes, comparison, found):
        axis.plot(limits, limits, color="#444444", lw=0.8, ls=":")
        axis.scatter(truth, predicted, color=style["color"], **_DOT)
        axis.set(xlim=limits, ylim=limits, aspect="equal", xlabel=f"True value{unit}")
        axis.set_title(folded(f"{model.key}: {_quality(comparison.results, row)}, n = {len(truth)}", width), fontsize=8)
        if axis is axes[0]:
            axis.set_ylabel(f"Predicted value{unit}")
    return figure


def residuals(comparison: Comparison) -> Figure | None:
    """A panel per model: predicted minus true against the predicted value, with their mean and 1.96 SD about it."""
    found = _all_numbers(comparison.results)
    if found is None:
        return None
    most = max(float(np.abs(predicted - truth).max()) for truth, predicted in found)
    unit = _in(comparison.results.unit)
    figure, axes, width = _panels(len(found), height=3.1)
    for axis, (style, model), _, (truth, predicted) in _each(axes, comparison, found):
        error = predicted - truth
        mean, spread = float(error.mean()), 1.96 * float(error.std(ddof=1)) if len(error) > 1 else 0.0
        axis.axhline(0, color="#444444", lw=0.8, ls=":")
        axis.axhline(mean, color=style["color"], lw=1.2)
        axis.axhspan(mean - spread, mean + spread, color=style["color"], alpha=0.08, lw=0)
        axis.scatter(predicted, error, color=style["color"], **_DOT)
        axis.set(ylim=_padded(-most, most), xlabel=f"Predicted value{unit}")
        axis.set_title(folded(f"{model.key}: mean {mean:+.3g}, 1.96 SD {spread:.3g}", width), fontsize=8)
        if axis is axes[0]:
            axis.set_ylabel(f"Error{unit}")
    return figure


def _each(
    axes: list[Axes], comparison: Comparison, found: list[tuple[Floats, Floats]]
) -> Iterator[tuple[Axes, tuple[dict[str, Any], ModelResults], ModelRow, tuple[Floats, Floats]]]:
    """Every model's panel, look, row of the table, and numbers."""
    return zip(axes, styled(comparison.results), comparison.rows, found, strict=True)


def _panels(count: int, height: float = 0.0) -> tuple[Figure, list[Axes], float]:
    """Axes for so many models, and the width of one of them; square ones if no height is given."""
    columns = across(count)
    width = HALF_IN if count == 1 else FULL_IN / columns
    figure, axes = panels(count, width=width, height=height or width + 0.3, columns=columns)
    return figure, axes, width


def _all_numbers(results: Results) -> list[tuple[Floats, Floats]] | None:
    """True and predicted numbers of every model's test cases, all repeats together; None for another task."""
    found = [_numbers(results, model) for model in results.models]
    known = [pair for pair in found if pair is not None]
    return known if len(known) == len(found) else None


def _numbers(results: Results, model: ModelResults) -> tuple[Floats, Floats] | None:
    pairs = [results.task.numbers(repeat.test.targets, repeat.test.readouts) for repeat in model.repeats]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        return None
    truth, predicted = zip(*known, strict=True)
    return np.concatenate(truth), np.concatenate(predicted)


def _quality(results: Results, row: ModelRow) -> str:
    """The table's own R2, so that a figure never says another than the table."""
    name = results.task.select_by
    mean = row.cells[name].mean
    return f"{results.task.metric_names[name]} {mean if isinstance(mean, Undefined) else f'{mean:.3f}'}"


def _in(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin
