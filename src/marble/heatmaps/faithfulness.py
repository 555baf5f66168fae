"""Deletion and insertion as a figure: how far a map can be believed, at a glance."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

from marble.attribution import Curves

BLUE, ORANGE = "#0072B2", "#D55E00"


def curve_numbers(curves: Curves) -> dict[str, object]:
    """Both curves and their areas, as they are stored."""
    return {
        "removed": curves.removed.tolist(),
        "deletion": curves.deletion.tolist(),
        "present": curves.present.tolist(),
        "insertion": curves.insertion.tolist(),
        "deletion_area": curves.deletion_area,
        "insertion_area": curves.insertion_area,
    }


def curves_figure(curves: Curves, score: str, title: str) -> Figure:
    """The score against the share of tiles removed and present, largest values first."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axis = figure.add_subplot()
    for x, y, area, colour, name in (
        (
            curves.removed,
            curves.deletion,
            curves.deletion_area,
            BLUE,
            "deletion, best tiles go first (low is good)",
        ),
        (
            curves.present,
            curves.insertion,
            curves.insertion_area,
            ORANGE,
            "insertion, best tiles come first (high is good)",
        ),
    ):
        axis.plot(x, y, color=colour, marker="o", ms=3, lw=1.6, label=f"{name}: mean {area:.3g}")
    axis.set(xlabel="Share of tiles removed, or present", ylabel=score, xlim=(-0.02, 1.02))
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", fontsize=8, frameon=False)
    return figure


def curves_png(curves: Curves, score: str, title: str) -> bytes:
    buffer = io.BytesIO()
    curves_figure(curves, score, title).savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
