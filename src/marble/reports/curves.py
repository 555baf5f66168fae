"""ROC, precision and recall, calibration: curves of two classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from marble.reports.collect import ModelResults, Results
from marble.reports.compare import Comparison
from marble.reports.panels import legend_below, panels, styled

GRID = np.linspace(0, 1, 201)


def roc(comparison: Comparison) -> Figure | None:
    results = comparison.results
    if not _is_binary(results):
        return None
    figure, (axis,) = panels(1)
    for style, model in styled(results):
        curves = []
        for truth, score in _binary(results, model):
            false, true, _ = roc_curve(truth, score, drop_intermediate=False)
            curves.append(np.interp(GRID, false, true))
        _mean_band(axis, curves, style, model.key, start=0.0)
    axis.plot([0, 1], [0, 1], color="#444444", lw=0.8, ls=":")
    axis.set(xlabel="False positive rate", ylabel="True positive rate", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    legend_below(figure, axis)
    return figure


def precision_recall(comparison: Comparison) -> Figure | None:
    results = comparison.results
    if not _is_binary(results):
        return None
    figure, (axis,) = panels(1)
    base = []
    for style, model in styled(results):
        curves = []
        for truth, score in _binary(results, model):
            precision, recall, _ = precision_recall_curve(truth, score)
            curves.append(np.interp(GRID, recall[::-1], precision[::-1]))
            base.append(truth.mean())
        _mean_band(axis, curves, style, model.key)
    axis.axhline(float(np.mean(base)), color="#444444", lw=0.8, ls="--")
    axis.set(xlabel="Recall", ylabel="Precision", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    legend_below(figure, axis)
    return figure


def calibration(comparison: Comparison) -> Figure | None:
    results = comparison.results
    if not _is_binary(results):
        return None
    figure, (axis,) = panels(1)
    for style, model in styled(results):
        pairs = _binary(results, model)
        truth, score = np.concatenate([t for t, _ in pairs]), np.concatenate([s for _, s in pairs])
        edges = np.unique(np.quantile(score, np.linspace(0, 1, 6)))
        bins = np.clip(np.searchsorted(edges, score, side="right") - 1, 0, max(0, len(edges) - 2))
        groups = [bins == b for b in np.unique(bins)]
        x, y = [score[g].mean() for g in groups], [truth[g].mean() for g in groups]
        axis.plot(x, y, marker="o", ms=4, lw=1.2, label=model.key, **style)
    axis.plot([0, 1], [0, 1], color="#444444", lw=0.8, ls=":")
    axis.set(xlabel="Predicted probability", ylabel="Share of positives", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    legend_below(figure, axis)
    return figure


def _mean_band(
    axis: Axes, curves: list[NDArray[np.float64]], style: dict[str, Any], label: str, start: float | None = None
) -> None:
    stacked = np.stack(curves)
    if start is not None:
        stacked[:, 0] = start
    mean, sd = stacked.mean(axis=0), stacked.std(axis=0)
    axis.plot(GRID, mean, lw=1.6, label=label, **style)
    if len(curves) > 1:
        low, high = np.clip(mean - sd, 0, 1), np.clip(mean + sd, 0, 1)
        axis.fill_between(GRID, low, high, color=style["color"], alpha=0.08, lw=0)


def _is_binary(results: Results) -> bool:
    """Whether the question is a yes or no, and every repeat has cases of both."""
    asked = [results.task.binary(repeat.test.targets, repeat.test.readouts) for repeat in results.models[0].repeats]
    return all(found is not None and len(set(found[0].tolist())) == 2 for found in asked)


def _binary(results: Results, model: ModelResults) -> list[tuple[NDArray[np.bool_], NDArray[np.float64]]]:
    """(positive, score) of each repeat's test patients."""
    asked = [results.task.binary(repeat.test.targets, repeat.test.readouts) for repeat in model.repeats]
    return [found for found in asked if found is not None]
