"""The results of `marble bench learning` as a Markdown table and a figure, as the documentation shows them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marble import files
from marble.reports.panels import PALETTE, panels

Table = Mapping[str, Any]


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """`learning.md` and `learning.svg` in `folder`."""
    return [
        files.publish(folder / "learning.md", markdown(tables)),
        files.publish(folder / "learning.svg", figure(tables)),
    ]


def markdown(tables: Sequence[Table]) -> str:
    """A table per group of cohorts that have the same models and seeds, a column per cohort."""
    parts = []
    for group in _alike(tables):
        names = [row["model"] for row in group[0]["models"]]
        seeds = group[0]["seeds"]
        head = ["Model", *(table["cohort"] for table in group)]
        lines = [_line(head), _line(["---"] * len(head))]
        for name in names:
            rows = [next(row for row in table["models"] if row["model"] == name) for table in group]
            lines.append(_line([name, *(_cell(row) for row in rows)]))
        metrics = ", ".join(f"{table['cohort']}: {table['models'][0]['metric']}" for table in group)
        said = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({', '.join(map(str, seeds))}). {metrics}."
        parts.append("\n".join([*lines, "", said]))
    return "\n\n".join(parts) + "\n"


def figure(tables: Sequence[Table]) -> bytes:
    """A panel per cohort: every model's mean with its interval, the first model on top and in a colour of its own."""
    models = max((len(table["models"]) for table in tables), default=1)
    drawn, axes = panels(len(tables), width=3.3, height=0.24 * models + 0.9)
    for axis, table in zip(axes, tables, strict=True):
        rows = list(reversed(table["models"]))  # the first on top
        for place, row in enumerate(rows):
            colour = PALETTE[place == len(rows) - 1]
            if row["interval"] is not None:
                axis.plot([row["interval"]["low"], row["interval"]["high"]], [place, place], color=colour, linewidth=2)
            if row["mean"] is not None:
                axis.plot([row["mean"]], [place], "o", markersize=5, color=colour)
        axis.set_yticks(range(len(rows)), [row["model"] for row in rows], fontsize=7)
        axis.set_title(table["cohort"], fontsize=8)
        seeds = len(table["seeds"])
        axis.set_xlabel(f"{rows[0]['metric']}, {seeds} seed{'s' if seeds > 1 else ''}", fontsize=7)
        axis.tick_params(axis="x", labelsize=7)
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _alike(tables: Sequence[Table]) -> list[list[Table]]:
    """Tables in groups with the same rows and seeds, in order of appearance."""
    groups: dict[tuple[tuple[str, ...], tuple[int, ...]], list[Table]] = {}
    for table in tables:
        key = (tuple(sorted(row["model"] for row in table["models"])), tuple(table["seeds"]))
        groups.setdefault(key, []).append(table)
    return list(groups.values())


def _cell(row: Mapping[str, Any]) -> str:
    """Mean, interval, Holm-corrected p against the first model, calibration error."""
    if row["mean"] is None:
        return "undefined"
    said = f"{row['mean']:.3f}"
    if row["interval"] is not None:
        said += f" [{row['interval']['low']:.3f}, {row['interval']['high']:.3f}]"
    if row["p_holm"] is not None:
        said += ", p < 0.001" if row["p_holm"] < 0.001 else f", p = {row['p_holm']:.3f}"
    return said if row["ece"] is None else f"{said}, ECE {row['ece']:.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
