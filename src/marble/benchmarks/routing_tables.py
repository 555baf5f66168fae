"""The results of `marble bench routing` as Markdown tables and a figure, as the documentation shows them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marble import files
from marble.benchmarks.routing_curves import CHOICES
from marble.reports.panels import DASHES, PALETTE, legend_below, panels

Table = Mapping[str, Any]


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """`routing.md` and `routing.svg` in `folder`."""
    return [
        files.publish(folder / "routing.md", markdown(tables)),
        files.publish(folder / "routing.svg", figure(tables)),
    ]


def markdown(tables: Sequence[Table]) -> str:
    """A table per cohort, a row per budget; and one of times."""
    parts = [_one(table) for table in tables] + [_times(table) for table in tables if "time" in table]
    return "\n\n".join(parts) + "\n"


def _one(table: Table) -> str:
    found = {(point["choice"], point["budget"]): point for point in table["points"]}
    budgets = sorted({budget for _, budget in found})
    count = len(table["seeds"])
    repeats = table["repeats"] if count > 1 else table["repeats"].removesuffix("s")
    said = f"`{table['cohort']}`: {count} {repeats}, {table['slides']} test slides in all."
    lines = [
        said,
        "",
        "| budget | fine tiles | routed | random | attention oracle | routed minus whole |",
        "|---" * 6 + "|",
    ]
    for budget in budgets:
        mine = found["routed", budget]
        cells = [_with_interval(found[choice, budget], "auc", "interval") for choice in CHOICES]
        loss = "-" if budget == 1 else _with_interval(mine, "difference", "difference_interval")
        lines.append(f"| {budget:g} | {mine['share']:.3f} | {' | '.join(cells)} | {loss} |")
    return "\n".join(lines)


def _times(table: Table) -> str:
    """Slide to prediction, routed against whole."""
    lines = [
        f"From slide file to prediction with {table['encoder']}, CPU time:",
        "",
        "| slides | budget | tiles, routed / whole | seconds, routed / whole | of the tiles | of the time (by slide) |",
        "|---" * 6 + "|",
    ]
    for row in table["time"]:
        tiles, seconds, (low, high) = row["tiles"], row["cpu_seconds"], row["range"]
        lines.append(
            f"| {row['slides']}, {row['turns']} turns | {row['budget']:g} "
            f"| {tiles['routed']:.0f} / {tiles['whole']:.0f} | {seconds['routed']:.2f} / {seconds['whole']:.2f} "
            f"| {tiles['routed'] / tiles['whole']:.3f} | {row['ratio']:.3f} ({low:.3f} to {high:.3f}) |"
        )
    return "\n".join(lines)


def _with_interval(point: Mapping[str, Any], value: str, interval: str) -> str:
    low, high = point[interval]
    return f"{point[value]:.3f} [{low:.3f}, {high:.3f}]"


def figure(tables: Sequence[Table]) -> bytes:
    """A panel per cohort: AUC against the share of fine tiles, a curve and its band for every choice."""
    drawn, axes = panels(len(tables), width=3.3, height=2.6)
    for axis, table in zip(axes, tables, strict=True):
        for place, choice in enumerate(CHOICES):
            mine = [point for point in table["points"] if point["choice"] == choice]
            shares = [point["share"] for point in mine]
            colour, dashes = PALETTE[place], DASHES[place]
            name = "attention oracle" if choice == "oracle" else choice
            low, high = zip(*(point["interval"] for point in mine), strict=True)
            axis.plot(shares, [point["auc"] for point in mine], "o", ls=dashes, color=colour, markersize=3, label=name)
            axis.fill_between(shares, low, high, color=colour, alpha=0.12, linewidth=0)
        axis.set_title(table["cohort"], fontsize=8)
        axis.set_xlabel("share of fine tiles embedded", fontsize=7)
        axis.set_ylabel("test AUC", fontsize=7)
        axis.tick_params(labelsize=7)
    legend_below(drawn, axes[0])
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
