"""The look of every figure: sizes, colours, panels, legends.

Colours are from the Okabe-Ito palette, which people with colour-vision deficiency can tell apart; models also differ in
their dashes, so that one curve upon another still shows both. Legends stand beside the axes, never on a curve.
"""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marble.reports.collect import ModelResults, Results

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255", "#44AA99")
DASHES = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
#: a figure takes half of the page's width or all of it
HALF_IN, FULL_IN = 4.7, 9.9

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


def panels(count: int, width: float = HALF_IN, height: float = 4.2, columns: int = 3) -> tuple[Figure, list[Axes]]:
    across = min(count, columns)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    axes = [figure.add_subplot(down, across, place + 1) for place in range(count)]
    return figure, axes


def across(count: int) -> int:
    """How many panels stand side by side: three, or four where three would leave one alone."""
    return min(count, 4 if count % 3 == 1 else 3)


def legend_below(figure: Figure, axis: Axes) -> None:
    """The models' names under the axes, in as many columns as their length leaves room for; the figure grows by it."""
    handles, names = axis.get_legend_handles_labels()
    columns = max(1, min(3, int(HALF_IN / (0.065 * max(map(len, names), default=1) + 0.5))))
    figure.set_figheight(figure.get_figheight() + 0.16 * -(-len(names) // columns))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=7, handlelength=3)


def folded(text: str, width_in: float) -> str:
    """A title in lines that fit a panel."""
    return "\n".join(textwrap.wrap(text, width=int(width_in / 0.075)))


def styled(results: Results) -> list[tuple[dict[str, Any], ModelResults]]:
    """Colour and dashes of every model's curves: 10 colours and 4 kinds of dashes make 20 different pairs."""
    return [
        ({"color": PALETTE[place % len(PALETTE)], "linestyle": DASHES[place % len(DASHES)]}, model)
        for place, model in enumerate(results.models)
    ]
