"""Learning curves, from each run's history.csv: loss on training and validation cases, epoch by epoch."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from marble import files
from marble.errors import RunError
from marble.reports.collect import ModelResults, Repeat
from marble.reports.compare import Comparison
from marble.reports.panels import FULL_IN, PALETTE, across, folded, panels


def learning_curves(comparison: Comparison) -> Figure | None:
    """A panel per model: thin lines are runs, dots the epochs that validation chose. Solved models have no epochs."""
    models = [model for model in comparison.results.models if model.record["model"]["recipe"] != "solved"]
    histories = {model.key: [_history(repeat) for repeat in model.repeats] for model in models}
    shown = [model for model in models if any(len(one["epoch"]) for one in histories[model.key])]
    if not shown:
        return None
    columns = across(len(shown))
    figure, axes = panels(len(shown), width=FULL_IN / columns, height=2.7, columns=columns)
    for axis, model in zip(axes, shown, strict=True):
        for history, best in zip(histories[model.key], _chosen(model), strict=True):
            for colour, name in ((PALETTE[0], "train_loss"), (PALETTE[1], "val_loss")):
                if name in history:
                    axis.plot(history["epoch"], history[name], color=colour, lw=1, alpha=0.6)
                    at = history["epoch"] == best
                    if name == "val_loss" and at.any():
                        axis.plot(history["epoch"][at], history[name][at], "o", color=colour, ms=4)
        axis.set_title(folded(model.key, FULL_IN / columns), fontsize=8)
        axis.set(xlabel="Epoch", ylabel="Loss" if axis is axes[0] else "")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for colour, name in ((PALETTE[0], "training"), (PALETTE[1], "validation; dot: chosen epoch")):
        axes[0].plot([], [], color=colour, label=name)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    return figure


def _chosen(model: ModelResults) -> list[int]:
    return [int(repeat.record["fit"]["best_epoch"]) for repeat in model.repeats]


def _history(repeat: Repeat) -> dict[str, NDArray[np.float64]]:
    """{column: (epochs,)}; what is empty or no number is NaN and leaves a gap."""
    path = Path(repeat.folder) / "history.csv"
    if not path.exists():
        return {"epoch": np.empty(0)}
    data = path.read_bytes()
    if files.sha256_bytes(data) != repeat.record["sha256"]["history"]:
        raise RunError("the history changed since it was written", where=path, hint="Run it again")
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    if not rows:
        return {"epoch": np.empty(0)}
    names = [name for name in ("epoch", "train_loss", "val_loss") if name in rows[0]]
    return {name: np.array([_number(row[name]) for row in rows]) for name in names}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
