"""The page: rows without holes, legends beside curves, and a table that fits; from small real runs."""

from __future__ import annotations

import base64
import itertools
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from typer.testing import CliRunner

from marble.cli import assemble, terminal
from marble.cli.report import write_and_show
from marble.reports.cases import errors, extremes, key_of
from marble.reports.collect import Part, Repeat, collect
from marble.reports.compare import Comparison, compare
from marble.reports.confusion import confusion, confusion_table
from marble.reports.figures import all_figures
from marble.reports.page import CaseLooks, CasePicture, _cell, _in_rows, write_comparison, write_report
from marble.reports.panels import FULL_IN, HALF_IN
from marble.reports.setup import setup_rows
from marble.reports.tables import _tex, caption, table_rows
from marble.tasks.classification import Classification
from marble.tasks.metric import outcome_arrays
from marble.tasks.survival import Survival
from marble.training.run import execute
from marble.version import VERSION
from tests.training.jobs import plan

MODELS = """[
  { name = "mean", hidden = 8, label = "mean" },
  { name = "mean", hidden = 8, label = "the same again, with a name of some length" },
  { name = "marble", d_state = 8, label = "marble" },
]"""


@pytest.fixture(scope="module", params=["burden", "survival"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models, two of which give the same curves."""
    folder = tmp_path_factory.mktemp(request.param)
    for planned in plan(folder, request.param, MODELS, patients=32, epochs=1):
        execute(planned)
    return folder / "out" / "tiny"


@pytest.fixture(scope="module")
def comparison(runs: Path) -> Comparison:
    return compare(collect(runs))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), max_size=12))
def test_no_row_of_figures_is_half_empty(wide: list[bool]) -> None:
    pictures: list[dict[str, Any]] = [{"stem": str(place), "wide": one} for place, one in enumerate(wide)]
    rows = _in_rows(pictures)
    assert sorted(picture["stem"] for picture in rows) == sorted(picture["stem"] for picture in pictures)
    filled = 0  # halves of the current row
    for picture in rows:
        filled += 2 if picture["wide"] else 1
        assert filled <= 2, "a wide figure after half a row leaves the other half empty"
        filled %= 2
    assert filled == 0
    assert sum(picture["wide"] for picture in rows) - sum(wide) in (0, 1)


def _drawn(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return canvas.get_renderer()  # type: ignore[no-untyped-call]


def test_legends_are_in_the_figure_and_beside_the_axes(comparison: Comparison) -> None:
    legends = 0
    for stem, (_, figure) in all_figures(comparison).items():
        renderer = _drawn(figure)
        for legend in [*figure.legends, *(axis.get_legend() for axis in figure.axes)]:
            if legend is None:
                continue
            legends += 1
            box = legend.get_window_extent(renderer)
            assert all(not box.overlaps(axis.get_window_extent(renderer)) for axis in figure.axes), stem
            assert box.x0 >= 0, stem
            assert box.y0 >= 0, stem
            assert box.x1 <= figure.bbox.x1, stem
    assert legends


def test_figures_take_half_of_the_page_or_all_of_it(comparison: Comparison) -> None:
    for stem, (_, figure) in all_figures(comparison).items():
        assert figure.get_figwidth() <= FULL_IN + 1e-9, stem
        assert figure.get_figwidth() <= HALF_IN * 1.1 or figure.get_figwidth() > 1.2 * HALF_IN, stem


@pytest.mark.parametrize("sizes", [(16_133, 34_248, 578_050), (1_000, 1_001, 1_000), (700, 9_000_000, 90_000_000)])
def test_labels_of_sizes_can_be_read(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    for model, size in zip(comparison.results.models, sizes, strict=True):
        monkeypatch.setitem(model.record["model"], "parameters", size)
    figure = all_figures(comparison)["cost"][1]
    renderer = _drawn(figure)
    axis = figure.axes[0].xaxis
    labels = [label for label in axis.get_ticklabels(which="both") if label.get_text()]
    boxes = [label.get_window_extent(renderer) for label in labels]
    assert len(boxes) >= 2
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_a_model_without_an_interval_is_still_in_the_figures(comparison: Comparison) -> None:
    metric = comparison.results.task.select_by
    rows = [
        replace(row, cells={**row.cells, metric: replace(row.cells[metric], interval=None)}) for row in comparison.rows
    ]
    figure = all_figures(replace(comparison, rows=tuple(rows)))["cost"][1]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [row.model.key for row in rows]


@pytest.mark.parametrize("models", [1, 2, 5, 17])
@pytest.mark.parametrize("classes", [("0", "1"), ("healthy", "moderately-to-poorly differentiated", "poor", "unknown")])
def test_names_of_classes_can_be_read(classes: tuple[str, ...], models: int) -> None:
    task = Classification(classes)
    readouts = {name: np.eye(len(classes))[i] for i, name in enumerate(task.columns)}
    test = Part(tuple(classes), tuple(classes), readouts, np.zeros(len(classes)))
    repeat = Repeat(Path(), {"calibration": {}}, {"test": test}, {})
    results = SimpleNamespace(task=task, models=[SimpleNamespace(key="a model", repeats=[repeat])] * models)
    figure = confusion(cast("Comparison", SimpleNamespace(results=results)))
    assert figure is not None
    assert figure.get_figwidth() <= FULL_IN
    renderer = _drawn(figure)
    labels = [label for axis in figure.axes for label in (*axis.get_xticklabels(), *axis.get_yticklabels())]
    titles = [axis.title for axis in figure.axes]
    boxes = [text.get_window_extent(renderer) for text in (*labels, *titles) if text.get_text()]
    assert {text.get_text().replace("\n", " ").replace("- ", "-") for text in labels} - {""} == set(classes)
    for box in boxes:
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    panels = [axis.get_window_extent(renderer) for axis in figure.axes]
    assert not any(box.overlaps(panel) for box in boxes for panel in panels)


def test_curves_of_two_models_that_agree_are_both_seen(comparison: Comparison) -> None:
    figures = all_figures(comparison)
    if "roc" not in figures:
        pytest.skip("survival has no ROC")
    figure = figures["roc"][1]
    _drawn(figure)
    legend = figure.legends[0].get_lines()
    # Two curves that lie upon each other are told apart by what shows through the upper one's gaps.
    assert len({line.get_color() for line in legend}) == len(comparison.rows)
    assert len({str(line._unscaled_dash_pattern) for line in legend}) == len(comparison.rows)  # type: ignore[attr-defined]


def test_a_model_without_a_test_is_not_called_the_reference(comparison: Comparison) -> None:
    rows = tuple(replace(row, tests={}, corrected={}) for row in comparison.rows)
    header, body = table_rows(replace(comparison, rows=rows))
    column = next(place for place, name in enumerate(header) if name.startswith("p ("))
    assert [cells[column] for cells in body] == ["reference", "-", "-"]
    assert comparison.results.reference is rows[0].model


def test_cells_have_the_interval_on_a_line_of_its_own() -> None:
    assert _cell("0.586 ± 0.192 [0.385, 0.769]") == {"main": "0.586 ± 0.192", "interval": "[0.385, 0.769]"}
    assert _cell("undefined (no event)") == {"main": "undefined (no event)", "interval": ""}


def test_survival_tables_hold_the_integrated_brier_score(comparison: Comparison, runs: Path) -> None:
    header, body = table_rows(comparison)
    task = comparison.results.task
    if not isinstance(task, Survival):
        assert "ibs" not in comparison.results.metric_names
        return
    assert "Integrated Brier (lower is better)" in header
    for row in comparison.rows:
        for repeat in row.model.repeats:
            train, test = repeat.parts["train"], repeat.test
            score = task.integrated_brier(test.targets, test.readouts, train.targets, train.readouts)
            assert repeat.metrics["ibs"] == score
            assert isinstance(score, float) == (len(set(outcome_arrays(test.targets)[0])) > 1)
    column = [cells[header.index("Integrated Brier (lower is better)")] for cells in body]
    assert all(re.match(r"0\.\d{3} ± 0\.\d{3}$", cell) or cell.startswith("undefined (") for cell in column)


def test_the_same_predictions_give_the_same_page(runs: Path, tmp_path: Path) -> None:
    pages = [write_report(runs, tmp_path / name) for name in ("a", "b")]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert "<script" not in pages[0].read_text()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 1600])
def test_the_table_fits_a_screen(runs: Path, tmp_path: Path, width: int, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.goto(write_report(runs, tmp_path).as_uri())
    inner, outer = page.evaluate(
        "() => { const box = document.querySelector('.scroll'); return [box.scrollWidth, box.clientWidth]; }"
    )
    assert inner <= outer
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.close()


def test_on_a_terminal_every_p_stands_behind_its_metric(
    runs: Path,
    comparison: Comparison,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(terminal, "console", lambda: Console(width=120))
    write_and_show(runs, tmp_path)
    said = capsys.readouterr().out
    left_out = next((line for line in said.splitlines() if line.startswith("Not shown")), "")
    assert "p (" not in left_out
    header = next(line for line in said.splitlines() if line.strip().startswith("Model"))
    assert comparison.tested
    for name in comparison.tested:
        metric = re.escape(comparison.results.task.metric_names[name])
        assert re.search(rf"{metric}\s+\({metric}\)", header), header


def test_the_caption_says_how_many_repeats_samples_skipped(comparison: Comparison) -> None:
    assert "skip repeats" not in caption(comparison)
    metric = comparison.results.metric_names[0]
    row = comparison.rows[0]
    scarce = replace(row, cells={**row.cells, metric: replace(row.cells[metric], left_out=0.634)})
    text = caption(replace(comparison, rows=(scarce, *comparison.rows[1:])))
    assert f"as where a class is missing (63 % for {comparison.results.task.metric_names[metric]})" in text


def test_the_caption_says_why_a_metric_has_no_interval_and_no_p(comparison: Comparison) -> None:
    """A number stood there without its interval, and `-` in place of p, and nothing said why."""
    assert "no interval" not in caption(comparison).lower()
    metric = comparison.tested[0]
    bare = replace(comparison.rows[-1].cells[metric], left_out=0.57, interval=None)
    others = {key: p for key, p in comparison.rows[-1].corrected.items() if key != metric}
    row = replace(comparison.rows[-1], cells={**comparison.rows[-1].cells, metric: bare}, corrected=others)
    name = comparison.results.task.metric_names[metric]
    text = caption(replace(comparison, rows=(*comparison.rows[:-1], row)))
    assert f" No interval for {name} and no p for {name}: more than 20 % of the samples have no value at all." in text


def test_the_caption_counts_repeats_that_divide_the_patients_alike(comparison: Comparison) -> None:
    assert "divide the patients" not in caption(comparison)
    results = comparison.results
    first = results.models[0]
    alike = replace(first, repeats=(*first.repeats, first.repeats[0]))
    text = caption(replace(comparison, results=replace(results, models=(alike, *results.models[1:]))))
    assert f" 1 of {len(alike.repeats)} repeats divide the patients as earlier ones do" in text


def test_the_page_says_how_it_was_set_up_and_shows_cases(runs: Path, comparison: Comparison, tmp_path: Path) -> None:
    results = comparison.results
    shown = extremes(results)
    pictures = {
        (shown[0].job, shown[0].slide_ids[0]): CasePicture(b"\x89PNG not really", is_map=True),
        (shown[1].job, shown[1].slide_ids[0]): CasePicture(b"\x89PNG of tissue", is_map=False),
    }
    looks = CaseLooks(pictures, "http://localhost:1/")
    text = write_comparison(comparison, tmp_path, looks).read_text()
    rows = dict(setup_rows(results))
    assert rows["Task"].startswith(results.task.name)
    assert str(results.accounting()["used"]) in rows["Slides"]
    assert VERSION in rows["Versions"]
    parts = results.models[0].repeats[0].record["parts"]
    assert f"{len({entry['case_id'] for entry in parts['train'].values()})}" in rows["Splits"]
    assert "hours" in rows["Training time"] or "minutes" in rows["Training time"]
    for name in rows:
        assert f"<dt>{name}</dt>" in text
    slide = shown[0].slide_ids[0]
    assert f"http://localhost:1/slide/{key_of('slide', slide)}#{shown[0].job}" in text
    drawn, plain = (base64.b64encode(picture.png).decode() for picture in pictures.values())
    assert f'<img alt="What the model looked at on {slide}" src="data:image/png;base64,{drawn}">' in text
    assert f'<img alt="Slide {shown[1].slide_ids[0]}" src="data:image/png;base64,{plain}">' in text
    assert (tmp_path / "learning.png").exists()
    assert "@media print" in text


def test_errors_are_those_of_the_confusion_matrix(comparison: Comparison) -> None:
    results = comparison.results
    wrong = errors(results)
    if not results.task.class_names:
        assert wrong == []
        return
    for model in results.models:
        table = confusion_table(results.task, model.repeats)
        assert sum(case.model == model.key for case in wrong) == table.sum() - np.trace(table)
    assert [case.number for case in wrong] == sorted((case.number for case in wrong), reverse=True)
    assert all(case.truth != case.said for case in wrong)


def test_the_reference_can_be_chosen(runs: Path) -> None:
    done = CliRunner().invoke(assemble(), ["report", str(runs), "--out", str(runs / "x"), "--reference", "mean"])
    assert done.exit_code == 0, done.output
    assert "every model is tested against mean" in (runs / "x" / "index.html").read_text()
    assert collect(runs, "mean").models[0].key == "mean"
    refused = CliRunner().invoke(assemble(), ["report", str(runs), "--out", str(runs / "y"), "--reference", "meen"])
    assert refused.exit_code != 0
    assert "meen" in str(refused.exception)


def test_numbers_at_risk_are_counted(comparison: Comparison) -> None:
    results = replace(comparison.results, unit="months")
    figures = all_figures(replace(comparison, results=results))
    if "kaplan-meier" not in figures:
        assert results.task.class_names
        return
    for axis, model in zip(figures["kaplan-meier"][1].axes, results.models, strict=True):
        times = np.concatenate([outcome_arrays(repeat.test.targets)[0] for repeat in model.repeats])
        assert "(months)" in axis.get_xlabel()
        for place, label in zip(axis.get_xticks(), axis.get_xticklabels(), strict=True):
            tick, low, high = label.get_text().split("\n")
            assert float(tick) == pytest.approx(place)
            assert int(low) + int(high) == int((times >= place).sum())
        assert "HR" in axis.get_title()


def test_what_latex_takes_for_commands_is_shown_as_it_is() -> None:
    assert _tex("a_b ~ 50 % & {x^2} > $1 \\ #2") == (
        "a\\_b \\textasciitilde{} 50 \\% \\& \\{x\\textasciicircum{}2\\} $>$ \\$1 \\textbackslash{} \\#2"
    )
