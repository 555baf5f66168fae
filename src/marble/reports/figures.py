"""Figures from stored predictions: one function each, which returns None where the figure has no place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator, NullFormatter

from marble.reports.collect import ModelResults
from marble.reports.compare import Comparison
from marble.reports.confusion import confusion
from marble.reports.curves import calibration, precision_recall, roc
from marble.reports.hazard import hazard_ratio
from marble.reports.learning import learning_curves
from marble.reports.numbers import residuals, scatter
from marble.reports.panels import FULL_IN, HALF_IN, PALETTE, folded, legend_below, panels, styled
from marble.targets import Target
from marble.tasks.base import Task
from marble.tasks.kaplan_meier import KaplanMeier, logrank
from marble.tasks.metric import Bools, Floats, Undefined, outcome_arrays
from marble.training.results import validation_of

RISK_GROUPS = (
    "Test patients of all repeats by risk group; the cut is each run's training median. Who was tested several times "
    "counts once, in the group that most of them say. Below the axis: how many are still followed. HR: hazard ratio of "
    "high against low risk, with its 95 % interval."
)
PREDICTED = (
    "Predicted against true value, test cases of all repeats; dotted: where both are equal. R2 as in the "
    "table: the mean over repeats."
)
ERRORS = "Predicted minus true value, test cases of all repeats; line: their mean, band: 1.96 SD to either side."


def all_figures(comparison: Comparison) -> dict[str, tuple[str, Figure]]:
    """{file stem: (caption, figure)} of every figure that this experiment can show."""
    makers: list[tuple[str, str, Callable[[Comparison], Figure | None]]] = [
        ("metrics", "Mean over repeats with the 95 % interval by bootstrap over patients.", metric_bars),
        ("roc", "ROC on test patients, mean over repeats; thin band: one SD.", roc),
        (
            "pr",
            "Precision and recall on test patients, mean over repeats; dashed: share of positives.",
            precision_recall,
        ),
        ("calibration", "Predicted probability against what happened, test patients of all repeats.", calibration),
        ("confusion", "Confusion on the test cases of all repeats; rows are the truth.", confusion),
        ("kaplan-meier", RISK_GROUPS, kaplan_meier),
        ("scatter", PREDICTED, scatter),
        ("residuals", ERRORS, residuals),
        ("learning", "Loss by epoch, every run; training and validation.", learning_curves),
        ("choice", "Every candidate value: validation, which decides, and test, which is only shown.", choice_curve),
        ("cost", "Size against quality; bars are the 95 % interval.", cost),
        (
            "orders",
            "How far predictions move with the order of tokens (SD of the logit over fixed orders).",
            order_spread,
        ),
    ]
    made = {}
    for stem, caption, maker in makers:
        figure = maker(comparison)
        if figure is not None:
            made[stem] = (caption, figure)
    return made


def metric_bars(comparison: Comparison) -> Figure | None:
    names = comparison.tested or tuple(comparison.results.metric_names[:1])
    rows = comparison.rows
    # A single panel stands beside another figure, and is drawn about as high.
    width, least = (HALF_IN, 3.6) if len(names) == 1 else (FULL_IN / 2, 0.0)
    figure, axes = panels(len(names), width=width, height=max(least, 0.34 * len(rows) + 1.1))
    for axis, name in zip(axes, names, strict=True):
        for place, row in enumerate(rows):
            cell = row.cells[name]
            if isinstance(cell.mean, Undefined):
                axis.text(0.5, place, str(cell.mean), va="center", fontsize=7)
                continue
            colour = PALETTE[0] if row.model is comparison.results.reference else "#8a8a8a"
            if cell.interval is not None:
                axis.plot([cell.interval.low, cell.interval.high], [place, place], color=colour, lw=2)
            values = [value for value in row.model.values(name) if not isinstance(value, Undefined)]
            axis.plot(values, [place] * len(values), "o", color=colour, ms=3, alpha=0.35)
            axis.plot([cell.mean], [place], "D", color=colour, ms=6)
        if name in comparison.results.task.chance:
            axis.axvline(comparison.results.task.chance[name], color="#444444", lw=0.8, ls=":")
        axis.set_yticks(range(len(rows)), [row.model.key if axis is axes[0] else "" for row in rows])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlabel(comparison.results.task.metric_names[name])
    return figure


def kaplan_meier(comparison: Comparison) -> Figure | None:
    results = comparison.results
    groups = [_risk_groups(results.task, model) for model in results.models]
    if any(found is None for found in groups):
        return None
    figure, axes = panels(len(results.models), width=FULL_IN / 3, height=3.7)
    for axis, model, found in zip(axes, results.models, groups, strict=True):
        assert found is not None
        time, event, high = found
        for group, colour in ((~high, PALETTE[0]), (high, PALETTE[1])):
            if not group.any():
                continue
            curve = KaplanMeier.fit(time[group], event[group])
            low_band, high_band = curve.interval()
            x = np.append(0.0, curve.times)
            axis.step(x, np.append(1.0, curve.survival), where="post", color=colour)
            axis.fill_between(x, np.append(1, low_band), np.append(1, high_band), step="post", color=colour, alpha=0.15)
        test, ratio = logrank(time, event, high), hazard_ratio(time, event, high)
        said = str(test) if isinstance(test, Undefined) else f"log-rank p = {test.p_value:.3g}"
        said = f"HR {ratio}; {said}" if isinstance(ratio, Undefined) else f"{ratio}; {said}"
        axis.set_title(f"{folded(model.key, FULL_IN / 3)}\n{folded(said, FULL_IN / 3)}", fontsize=8)
        axis.set(ylabel="Survival", ylim=(0, 1.02), xlim=(0, None))
        _numbers_at_risk(axis, time, high, comparison.results.unit)
    for colour, name in ((PALETTE[0], "low risk"), (PALETTE[1], "high risk")):
        axes[0].plot([], [], color=colour, label=name)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    return figure


def _numbers_at_risk(axis: Axes, time: Floats, high: Bools, unit: str) -> None:
    """Under each tick how many of either group are still followed: low risk above, high risk below."""
    ticks = [tick for tick in MaxNLocator(5).tick_values(0, float(time.max())) if 0 <= tick <= time.max()]
    labels = [f"{tick:g}\n{int((time[~high] >= tick).sum())}\n{int((time[high] >= tick).sum())}" for tick in ticks]
    axis.set_xticks(ticks, labels)
    axis.set_xlabel(f"Time{f' ({unit})' if unit else ''}; at risk: low, high")


def choice_curve(comparison: Comparison) -> Figure | None:
    results = comparison.results
    chosen = [model for model in results.models if model.variants]
    if not chosen:
        return None
    metric = results.task.select_by
    figure, axes = panels(len(chosen), width=HALF_IN if len(chosen) == 1 else FULL_IN / 2, columns=2)
    for axis, model in zip(axes, chosen, strict=True):
        names = list(model.variants)
        for colour, label, values in (
            (PALETTE[0], "validation (decides)", [_validation(model, n) for n in names]),
            (PALETTE[1], "test (only shown)", [_numbers(model, n, metric) for n in names]),
        ):
            known = [(place, found) for place, found in enumerate(values) if found]  # the others have no point
            axis.errorbar([place for place, _ in known], [np.mean(found) for _, found in known],
                          yerr=[np.std(found) for _, found in known], marker="o", color=colour, label=label,
                          capsize=3)  # fmt: skip
        axis.set_xticks(range(len(names)), names)
        axis.set(ylabel=results.task.metric_names[metric], title=model.key)
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return figure


def cost(comparison: Comparison) -> Figure | None:
    metric = comparison.results.task.select_by
    if len(comparison.rows) < 2:
        return None
    figure, (axis,) = panels(1)
    for (style, model), row in zip(styled(comparison.results), comparison.rows, strict=True):
        cell = row.cells[metric]
        if isinstance(cell.mean, Undefined):
            continue
        size = model.record["model"]["parameters"]
        if cell.interval is not None:
            axis.plot([size, size], [cell.interval.low, cell.interval.high], lw=1.5, color=style["color"])
        axis.plot([size], [cell.mean], "o", color=style["color"], label=model.key)
    sizes = [model.record["model"]["parameters"] for model in comparison.results.models]
    # Whole powers of ten, labelled: however close the sizes are, two labels stand below them, none upon another.
    decades = range(int(np.floor(np.log10(min(sizes)))), int(np.floor(np.log10(max(sizes)))) + 2)
    axis.set(xscale="log", xlabel="Parameters", ylabel=comparison.results.task.metric_names[metric])
    axis.set_xlim(10.0 ** decades[0], 10.0 ** decades[-1])
    axis.xaxis.set_major_locator(FixedLocator([10.0**decade for decade in decades]))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10k, 100k, 1M
    axis.xaxis.set_minor_formatter(NullFormatter())
    legend_below(figure, axis)
    return figure


def order_spread(comparison: Comparison) -> Figure | None:
    spread = {
        model.key: np.concatenate([repeat.test.order_sd for repeat in model.repeats])
        for model in comparison.results.models
    }
    moving = {key: values for key, values in spread.items() if values.max() > 0}
    if not moving:
        return None
    figure, (axis,) = panels(1, height=0.4 * len(moving) + 1.2)
    axis.boxplot(list(moving.values()), orientation="horizontal", tick_labels=list(moving), widths=0.5)
    axis.set(xlabel="SD of the logit over fixed orders")
    return figure


def _risk_groups(task: Task, model: ModelResults) -> tuple[Floats, Bools, Bools] | None:
    """Time, event and 'above the training median' of every patient who was tested; None for a task without risks.

    A patient of several repeats counts once, in the group that most of them say: counted as often as tested, the same
    few patients would make intervals too narrow and p-values too small.
    """
    said: dict[tuple[str, Target], list[bool]] = {}
    for repeat in model.repeats:
        high = task.high_risk(repeat.test.readouts, repeat.calibration)
        if high is None:
            return None
        for patient, target, above in zip(repeat.test.patients, repeat.test.targets, high.tolist(), strict=True):
            said.setdefault((patient, target), []).append(above)
    time, event = outcome_arrays([target for _, target in said])
    return time, event, np.array([2 * sum(votes) > len(votes) for votes in said.values()])


def _validation(model: ModelResults, variant: str) -> list[float]:
    found = (validation_of(repeat.record) for repeat in model.variants[variant])
    return [value for value in found if value is not None]


def _numbers(model: ModelResults, variant: str, metric: str) -> list[float]:
    values = [repeat.metrics[metric] for repeat in model.variants[variant]]
    return [value for value in values if not isinstance(value, Undefined)]
