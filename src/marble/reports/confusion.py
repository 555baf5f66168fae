"""Confusion matrices of all models, with names of classes that can be read."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from marble.reports.collect import Repeat
from marble.reports.compare import Comparison
from marble.reports.panels import FULL_IN, HALF_IN, folded, panels
from marble.tasks.base import Task
from marble.tasks.classification_metrics import confusion as counts
from marble.tasks.metric import Ints

CLASS_NAME_CHARACTERS = 18  # per line


def confusion(comparison: Comparison) -> Figure | None:
    results = comparison.results
    classes = results.task.class_names
    if not classes:
        return None
    names = [textwrap.fill(name, CLASS_NAME_CHARACTERS, break_long_words=False) for name in classes]
    longest = max(len(line) for name in names for line in name.split("\n"))
    margin = 0.07 * longest
    side = max(1.3, len(classes) * max(0.3, 0.15 * max(name.count("\n") + 1 for name in names)))
    across = min(len(results.models), max(1, int((FULL_IN - margin) / (side + 0.25))))
    # Names stand once, left of the first column and below the lowest panels; the figure grows by them.
    figure, axes = panels(len(results.models), width=side + 0.25, height=side + 0.45, columns=across)
    width = figure.get_figwidth() + margin
    if HALF_IN < width < 1.2 * HALF_IN:
        width = HALF_IN  # a little closer together, and it stands beside another
    figure.set_size_inches(width, figure.get_figheight() + margin)
    for place, (axis, model) in enumerate(zip(axes, results.models, strict=True)):
        table = confusion_table(results.task, model.repeats)
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
        axis.set_title(folded(model.key, side), fontsize=8)
        axis.grid(visible=False)
    return figure


def confusion_table(task: Task, repeats: Sequence[Repeat]) -> Ints:
    """(K, K) counts of test cases: truth in rows, the class called in columns."""
    names = task.class_names
    table = np.zeros((len(names), len(names)), dtype=np.int64)
    for repeat in repeats:
        called = repeat.called(task)
        assert called is not None
        truth = np.array([names.index(str(target)) for target in repeat.test.targets], dtype=np.int64)
        table += counts(truth, called, len(names))
    return table
