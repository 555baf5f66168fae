"""One self-contained page: the table, its caption, every figure; no script, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from marble import files
from marble.reports.cases import SHOWN, CaseCalled, errors, extremes
from marble.reports.collect import Results, collect
from marble.reports.compare import Comparison, compare
from marble.reports.figures import all_figures
from marble.reports.panels import HALF_IN
from marble.reports.setup import setup_rows
from marble.reports.tables import caption, table_csv, table_latex, table_markdown, table_rows
from marble.reports.together import TogetherRow, together, together_csv, together_rows
from marble.tasks.base import in_unit
from marble.training.results import validation_text
from marble.version import VERSION

VIEWER = "http://127.0.0.1:8765"


@dataclass(frozen=True)
class CasePicture:
    """A picture (PNG) of a case: the map of what the model looked at, or the slide alone."""

    png: bytes
    is_map: bool


@dataclass(frozen=True)
class CaseLooks:
    """How cases look: a picture by run id and slide id, and where the viewer listens that links lead to."""

    pictures: Mapping[tuple[str, str], CasePicture] = field(default_factory=dict)
    viewer: str = VIEWER


#: CSS pixels per inch of a figure, the same for all, so that text has one size throughout the page
SCALE = 118


def write_report(runs: str | Path, out: str | Path) -> Path:
    """Make tables, figures and `index.html` from the predictions stored below `runs`; return the page's path."""
    return write_comparison(compare(collect(runs)), out)


def write_comparison(comparison: Comparison, out: str | Path, looks: CaseLooks | None = None) -> Path:
    """The same from what was compared already; `looks` are pictures of cases that somebody with a model has drawn."""
    target = Path(out)
    files.publish(target / "table.csv", table_csv(comparison))
    files.publish(target / "table.md", table_markdown(comparison))
    files.publish(target / "table.tex", table_latex(comparison))
    rows = together(comparison.results)
    if rows:
        files.publish(target / "together.csv", together_csv(comparison.results, rows))
    pictures: list[dict[str, Any]] = []
    for stem, (text, figure) in all_figures(comparison).items():
        png = _render(figure, "png")
        files.publish(target / f"{stem}.png", png)
        files.publish(target / f"{stem}.svg", _render(figure, "svg"))
        wide = figure.get_figwidth() > 1.1 * HALF_IN
        pictures.append({"stem": stem, "caption": text, "data": base64.b64encode(png).decode(), "wide": wide,
                         "width_px": round(SCALE * figure.get_figwidth())})  # fmt: skip
    return files.publish(target / "index.html", _page(comparison, rows, _in_rows(pictures), looks or CaseLooks()))


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


def _page(comparison: Comparison, rows: Sequence[TogetherRow], pictures: list[dict[str, Any]], looks: CaseLooks) -> str:
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
        together=_together(results, rows),
        setup=setup_rows(results),
        sections=_sections(results, looks),
        pictures=pictures,
        runs=[
            {
                "model": model.key,
                "repeat": repeat.number,
                "variant": repeat.record["about"]["variant"],
                "epoch": f"{repeat.record['fit']['best_epoch']} of {repeat.record['fit']['epochs']}",
                "validation": validation_text(repeat.record),
                "id": repeat.record["job"],
            }
            for model in results.models
            for repeat in model.repeats
        ],
        version=VERSION,
    )


def _together(results: Results, rows: Sequence[TogetherRow]) -> dict[str, Any] | None:
    """The table of the repeats as one; None where there is nothing to average."""
    if not rows:
        return None
    header, body = together_rows(results, rows)
    return {"header": header, "rows": [[_cell(text) for text in row] for row in body]}


def _sections(results: Results, looks: CaseLooks) -> list[dict[str, Any]]:
    """The cases worth a look, in cards: errors, and the extremes of the reference."""
    wrong, ends = errors(results), extremes(results)
    sections = []
    if wrong:
        sections.append(
            {
                "title": "Errors",
                "note": _of_errors(wrong),
                "cards": [_card(one, results, looks) for one in wrong[:SHOWN]],
            }
        )
    name = (results.reference or results.models[0]).key
    note = f"Test cases of which {name} says most and least."
    sections.append({"title": "Extreme cases", "note": note, "cards": [_card(one, results, looks) for one in ends]})
    return sections


def _of_errors(wrong: list[CaseCalled]) -> str:
    """Which cases are shown as errors."""
    if wrong[0].miss is not None:
        return f"The test cases of {wrong[0].model} whose predicted value is farthest from the true one."
    more = "" if len(wrong) <= SHOWN else f" Of {len(wrong)} errors the {SHOWN} surest are shown."
    return f"Test cases whose class was called wrong, the surest first.{more}"


def _card(case: CaseCalled, results: Results, looks: CaseLooks) -> dict[str, Any]:
    slide_id = case.slide_ids[0]
    picture = looks.pictures.get((case.job, slide_id))
    return {
        "case": case,
        "slide": slide_id,
        "more": len(case.slide_ids) - 1,
        "link": f"{looks.viewer.rstrip('/')}{case.path(slide_id)}",
        "truth": results.task.truth_name,
        "extra": _extra(case, results),
        "picture": None if picture is None else base64.b64encode(picture.png).decode(),
        "shows": "What the model looked at on" if picture is not None and picture.is_map else "Slide",
    }


def _extra(case: CaseCalled, results: Results) -> str:
    """What stands in brackets behind what was said: how sure, or how far off."""
    if case.miss is not None:
        return in_unit(f"error {case.miss:+.3g}", results.unit)
    number = f"{case.number:.3f}"
    return "" if case.said == number else number


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
