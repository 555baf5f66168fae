"""One self-contained page: the table, its caption, every figure; no script, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from marble import files
from marble.reports.collect import collect
from marble.reports.compare import Comparison, compare
from marble.reports.figures import all_figures
from marble.reports.panels import HALF_IN
from marble.reports.tables import caption, table_csv, table_latex, table_markdown, table_rows
from marble.version import VERSION

#: CSS pixels per inch of a figure, the same for all, so that text has one size throughout the page
SCALE = 118


def write_report(runs: str | Path, out: str | Path) -> Path:
    """Make tables, figures and `index.html` from the predictions stored below `runs`; return the page's path."""
    return write_comparison(compare(collect(runs)), out)


def write_comparison(comparison: Comparison, out: str | Path) -> Path:
    """The same from what was compared already."""
    target = Path(out)
    files.publish(target / "table.csv", table_csv(comparison))
    files.publish(target / "table.md", table_markdown(comparison))
    files.publish(target / "table.tex", table_latex(comparison))
    pictures: list[dict[str, Any]] = []
    for stem, (text, figure) in all_figures(comparison).items():
        png = _render(figure, "png")
        files.publish(target / f"{stem}.png", png)
        files.publish(target / f"{stem}.svg", _render(figure, "svg"))
        wide = figure.get_figwidth() > 1.1 * HALF_IN
        pictures.append({"stem": stem, "caption": text, "data": base64.b64encode(png).decode(), "wide": wide,
                         "width_px": round(SCALE * figure.get_figwidth())})  # fmt: skip
    return files.publish(target / "index.html", _page(comparison, _in_rows(pictures)))


def _in_rows(pictures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order pictures so that no row is half empty: a wide one waits for a pair to close, and one left over is alone."""
    rows: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    open_pair = False
    for picture in pictures:
        if picture["wide"] and open_pair:
            waiting.append(picture)
            continue
        rows.append(picture)
        if not picture["wide"]:
            open_pair = not open_pair
        if not open_pair:
            rows += waiting
            waiting = []
    if open_pair:
        rows[-1] = {**rows[-1], "wide": True}
    return rows + waiting


def _page(comparison: Comparison, pictures: list[dict[str, Any]]) -> str:
    header, body = table_rows(comparison)
    environment = Environment(
        loader=PackageLoader("marble.reports", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    results = comparison.results
    return environment.get_template("page.html.j2").render(
        title=results.experiment,
        task=results.task.name,
        header=header,
        rows=[[_cell(text) for text in row] for row in body],
        reference=None if results.reference is None else results.reference.key,
        caption=caption(comparison),
        pictures=pictures,
        runs=[
            {
                "model": model.key,
                "repeat": repeat.number,
                "variant": repeat.record["about"]["variant"],
                "epoch": f"{repeat.record['fit']['best_epoch']} of {repeat.record['fit']['epochs']}",
                "validation": f"{repeat.selected_on:.3f}",
                "id": repeat.record["job"],
            }
            for model in results.models
            for repeat in model.repeats
        ],
        version=VERSION,
    )


def _cell(text: str) -> dict[str, str]:
    """A table cell in two lines: the figure, and below it the interval."""
    main, bracket, interval = text.partition(" [")
    return {"main": main, "interval": f"[{interval}" if bracket else ""}


def _render(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Without a date and a software field the same predictions give the same bytes.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, metadata=metadata, dpi=170)
    return buffer.getvalue()
