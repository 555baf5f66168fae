"""Figures from stored predictions: one function each, which returns None where the figure has no place.

Colours are from the Okabe-Ito palette, which people with colour-vision deficiency can tell apart; models also differ in
their dashes, so that one curve upon another still shows both. Legends stand beside the axes, never on a curve.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, NullFormatter
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from marble.reports.collect import ModelResults, Part, Results
from marble.reports.compare import Comparison
from marble.reports.tables import NAMES
from marble.tasks.base import Undefined, outcome_arrays
from marble.tasks.kaplan_meier import KaplanMeier, logrank

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255", "#44AA99")
DASHES = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
GRID = np.linspace(0, 1, 201)
#: a figure takes half of the page's width or all of it
HALF_IN, FULL_IN = 4.7, 9.9
CLASS_NAME_CHARACTERS = 18  # per line

mpl.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
        "figure.dpi": 110,
        "svg.hashsalt": "marble",  # the same figure gives the same bytes
    }
)


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
        (
            "kaplan-meier",
            "Test patients of all repeats by risk group; the cut is each run's training median.",
            kaplan_meier,
        ),
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
    figure, axes = _axes(len(names), width=width, height=max(least, 0.34 * len(rows) + 1.1))
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
        if name in ("auc", "c_index"):
            axis.axvline(0.5, color="#444444", lw=0.8, ls=":")  # chance, whatever the classes' shares
        axis.set_yticks(range(len(rows)), [row.model.key if axis is axes[0] else "" for row in rows])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlabel(NAMES.get(name, name))
    return figure


def roc(comparison: Comparison) -> Figure | None:
    results = comparison.results
    if not _is_binary(results):
        return None
    figure, (axis,) = _axes(1)
    for style, model in _styled(results):
        curves = []
        for truth, score in _binary(results, model):
            false, true, _ = roc_curve(truth, score, drop_intermediate=False)
            curves.append(np.interp(GRID, false, true))
        _mean_band(axis, curves, style, model.key, start=0.0)
    axis.plot([0, 1], [0, 1], color="#444444", lw=0.8, ls=":")
    axis.set(xlabel="False positive rate", ylabel="True positive rate", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    _legend_below(figure, axis)
    return figure


def precision_recall(comparison: Comparison) -> Figure | None:
    results = comparison.results
    if not _is_binary(results):
        return None
    figure, (axis,) = _axes(1)
    base = []
    for style, model in _styled(results):
        curves = []
        for truth, score in _binary(results, model):
            precision, recall, _ = precision_recall_curve(truth, score)
            curves.append(np.interp(GRID, recall[::-1], precision[::-1]))
            base.append(truth.mean())
        _mean_band(axis, curves, style, model.key)
    axis.axhline(float(np.mean(base)), color="#444444", lw=0.8, ls="--")
    axis.set(xlabel="Recall", ylabel="Precision", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    _legend_below(figure, axis)
    return figure


def calibration(comparison: Comparison) -> Figure | None:
    results = comparison.results
    if not _is_binary(results):
        return None
    figure, (axis,) = _axes(1)
    for style, model in _styled(results):
        pairs = _binary(results, model)
        truth, score = np.concatenate([t for t, _ in pairs]), np.concatenate([s for _, s in pairs])
        edges = np.unique(np.quantile(score, np.linspace(0, 1, 6)))
        bins = np.clip(np.searchsorted(edges, score, side="right") - 1, 0, max(0, len(edges) - 2))
        groups = [bins == b for b in np.unique(bins)]
        x, y = [score[g].mean() for g in groups], [truth[g].mean() for g in groups]
        axis.plot(x, y, marker="o", ms=4, lw=1.2, label=model.key, **style)
    axis.plot([0, 1], [0, 1], color="#444444", lw=0.8, ls=":")
    axis.set(xlabel="Predicted probability", ylabel="Share of positives", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    _legend_below(figure, axis)
    return figure


def confusion(comparison: Comparison) -> Figure | None:
    results = comparison.results
    if results.task.name != "classification":
        return None
    classes = results.spec.classes
    names = [textwrap.fill(name, CLASS_NAME_CHARACTERS, break_long_words=False) for name in classes]
    longest = max(len(line) for name in names for line in name.split("\n"))
    margin = 0.07 * longest
    side = max(1.3, len(classes) * max(0.3, 0.15 * max(name.count("\n") + 1 for name in names)))
    across = min(len(results.models), max(1, int((FULL_IN - margin) / (side + 0.25))))
    # Names stand once, left of the first column and below the lowest panels; the figure grows by them.
    figure, axes = _axes(len(results.models), width=side + 0.25, height=side + 0.45, columns=across)
    width = figure.get_figwidth() + margin
    if HALF_IN < width < 1.2 * HALF_IN:
        width = HALF_IN  # a little closer together, and it stands beside another
    figure.set_size_inches(width, figure.get_figheight() + margin)
    for place, (axis, model) in enumerate(zip(axes, results.models, strict=True)):
        table = np.zeros((len(classes), len(classes)), dtype=int)
        for repeat in model.repeats:
            called = np.stack([repeat.test.readouts[name] for name in results.task.columns]).argmax(axis=0)
            for target, answer in zip(repeat.test.targets, called, strict=True):
                table[classes.index(str(target)), answer] += 1
        share = table / np.maximum(1, table.sum(axis=1, keepdims=True))
        axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for (row, column), count in np.ndenumerate(table):
            axis.text(
                column,
                row,
                str(count),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if share[row, column] > 0.6 else "black",
            )
        below, left = place + across >= len(axes), place % across == 0
        upright = 90 if longest > 4 else 0
        axis.set_xticks(range(len(classes)), names if below else [""] * len(classes), rotation=upright, fontsize=8)
        axis.set_yticks(range(len(classes)), names if left else [""] * len(classes), fontsize=8)
        axis.set_title(_folded(model.key, side), fontsize=8)
        axis.grid(visible=False)
    return figure


def kaplan_meier(comparison: Comparison) -> Figure | None:
    results = comparison.results
    if results.task.name != "survival":
        return None
    figure, axes = _axes(len(results.models), width=FULL_IN / 3, height=3.2)
    for axis, model in zip(axes, results.models, strict=True):
        time, event, high = _risk_groups(model)
        for group, colour, name in ((~high, PALETTE[0], "low risk"), (high, PALETTE[1], "high risk")):
            if not group.any():
                continue
            curve = KaplanMeier.fit(time[group], event[group])
            low_band, high_band = curve.interval()
            x = np.append(0.0, curve.times)
            axis.step(
                x, np.append(1.0, curve.survival), where="post", color=colour, label=f"{name} (n = {group.sum()})"
            )
            axis.fill_between(x, np.append(1, low_band), np.append(1, high_band), step="post", color=colour, alpha=0.15)
        test = logrank(time, event, high)
        said = str(test) if isinstance(test, Undefined) else f"log-rank p = {test.p_value:.3g}"
        axis.set_title(f"{_folded(model.key, FULL_IN / 3)}\n{_folded(said, FULL_IN / 3)}", fontsize=8)
        axis.set(xlabel="Time", ylabel="Survival", ylim=(0, 1.02))
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    return figure


def choice_curve(comparison: Comparison) -> Figure | None:
    results = comparison.results
    chosen = [model for model in results.models if model.variants]
    if not chosen:
        return None
    metric = results.task.select_by
    figure, axes = _axes(len(chosen), width=HALF_IN if len(chosen) == 1 else FULL_IN / 2, columns=2)
    for axis, model in zip(axes, chosen, strict=True):
        names = list(model.variants)
        for colour, label, values in (
            (PALETTE[0], "validation (decides)", [[r.selected_on for r in model.variants[n]] for n in names]),
            (PALETTE[1], "test (only shown)", [_numbers(model, n, metric) for n in names]),
        ):
            axis.errorbar(range(len(names)), [np.mean(v) for v in values], yerr=[np.std(v) for v in values], marker="o",
                          color=colour, label=label, capsize=3)  # fmt: skip
        axis.set_xticks(range(len(names)), names)
        axis.set(ylabel=NAMES.get(metric, metric), title=model.key)
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return figure


def cost(comparison: Comparison) -> Figure | None:
    metric = comparison.results.task.select_by
    if len(comparison.rows) < 2:
        return None
    figure, (axis,) = _axes(1)
    for (style, model), row in zip(_styled(comparison.results), comparison.rows, strict=True):
        cell = row.cells[metric]
        if isinstance(cell.mean, Undefined) or cell.interval is None:
            continue
        size = model.record["model"]["parameters"]
        axis.plot([size, size], [cell.interval.low, cell.interval.high], lw=1.5, color=style["color"])
        axis.plot([size], [cell.mean], "o", color=style["color"], label=model.key)
    sizes = [model.record["model"]["parameters"] for model in comparison.results.models]
    # Whole powers of ten, labelled: however close the sizes are, two labels stand below them, none upon another.
    decades = range(int(np.floor(np.log10(min(sizes)))), int(np.floor(np.log10(max(sizes)))) + 2)
    axis.set(xscale="log", xlabel="Parameters", ylabel=NAMES.get(metric, metric))
    axis.set_xlim(10.0 ** decades[0], 10.0 ** decades[-1])
    axis.xaxis.set_major_locator(FixedLocator([10.0**decade for decade in decades]))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10k, 100k, 1M
    axis.xaxis.set_minor_formatter(NullFormatter())
    _legend_below(figure, axis)
    return figure


def order_spread(comparison: Comparison) -> Figure | None:
    spread = {
        model.key: np.concatenate([repeat.test.order_sd for repeat in model.repeats])
        for model in comparison.results.models
    }
    moving = {key: values for key, values in spread.items() if values.max() > 0}
    if not moving:
        return None
    figure, (axis,) = _axes(1, height=0.4 * len(moving) + 1.2)
    axis.boxplot(list(moving.values()), orientation="horizontal", tick_labels=list(moving), widths=0.5)
    axis.set(xlabel="SD of the logit over fixed orders")
    return figure


def _axes(count: int, width: float = HALF_IN, height: float = 4.2, columns: int = 3) -> tuple[Figure, list[Axes]]:
    across = min(count, columns)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    axes = [figure.add_subplot(down, across, place + 1) for place in range(count)]
    return figure, axes


def _legend_below(figure: Figure, axis: Axes) -> None:
    """The models' names under the axes, in as many columns as their length leaves room for; the figure grows by it."""
    handles, names = axis.get_legend_handles_labels()
    columns = max(1, min(3, int(HALF_IN / (0.065 * max(map(len, names), default=1) + 0.5))))
    figure.set_figheight(figure.get_figheight() + 0.16 * -(-len(names) // columns))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=7, handlelength=3)


def _folded(text: str, width_in: float) -> str:
    """A title in lines that fit a panel."""
    return "\n".join(textwrap.wrap(text, width=int(width_in / 0.075)))


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


def _styled(results: Results) -> list[tuple[dict[str, Any], ModelResults]]:
    """Colour and dashes of every model's curves: 10 colours and 4 kinds of dashes make 20 different pairs."""
    return [
        ({"color": PALETTE[place % len(PALETTE)], "linestyle": DASHES[place % len(DASHES)]}, model)
        for place, model in enumerate(results.models)
    ]


def _is_binary(results: Results) -> bool:
    if results.task.name != "classification" or len(results.spec.classes) != 2:
        return False
    return all(len(set(repeat.test.targets)) == 2 for repeat in results.models[0].repeats)


def _binary(results: Results, model: ModelResults) -> list[tuple[NDArray[np.bool_], NDArray[np.float64]]]:
    """(positive, score) of each repeat's test patients."""
    label, column = results.spec.classes[1], results.task.columns[1]
    return [(_is(repeat.test, label), repeat.test.readouts[column]) for repeat in model.repeats]


def _is(part: Part, label: str) -> NDArray[np.bool_]:
    return np.array([target == label for target in part.targets])


def _risk_groups(model: ModelResults) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Times, events and 'above the training median' of all repeats' test patients."""
    times, events, highs = [], [], []
    for repeat in model.repeats:
        time, event = outcome_arrays(repeat.test.targets)
        times.append(time)
        events.append(event)
        highs.append(repeat.test.readouts["risk"] > repeat.record["calibration"]["median_risk"])
    return np.concatenate(times), np.concatenate(events), np.concatenate(highs)


def _numbers(model: ModelResults, variant: str, metric: str) -> list[float]:
    values = [repeat.metrics[metric] for repeat in model.variants[variant]]
    return [value for value in values if not isinstance(value, Undefined)]
