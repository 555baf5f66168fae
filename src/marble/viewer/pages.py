"""The HTML pages: rendered here, without inline script or style, everything escaped."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from marble.attribution import MODES
from marble.errors import MarbleError
from marble.heatmaps.colours import DIVERGING, SEQUENTIAL
from marble.reports.collect import collect
from marble.reports.compare import compare
from marble.reports.figures import all_figures
from marble.reports.tables import caption, table_rows
from marble.version import VERSION
from marble.viewer.registry import Experiment, Registry, RunEntry, SlideEntry


@dataclass(frozen=True)
class Results:
    """An experiment's table and figures, made once."""

    header: list[str]
    rows: list[list[str]]
    caption: str
    figures: dict[str, tuple[str, bytes]] = field(repr=False)  # stem -> caption, PNG


class Pages:
    """Every page, by name."""

    def __init__(self, registry: Registry, *, has_library: bool) -> None:
        self._registry, self._has_library = registry, has_library
        self._environment = Environment(
            loader=PackageLoader("marble.viewer", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        self._environment.globals.update(version=VERSION)
        self._results: dict[str, Results | str] = {}
        self._lock = Lock()

    @cached_property
    def cases(self) -> str:
        """The list; what there is was fixed at the start, so it is rendered once."""
        models = sorted({run.model for run in self._registry.runs.values()})
        rows = [self._case(slide, models) for slide in self._registry.slides.values()]
        return self._render(
            "cases.html.j2",
            models=models,
            rows=rows,
            truths=sorted({slide.truth for slide in self._registry.slides.values()} - {""}),
            predictions=sorted({said["text"] for row in rows for said in row["said"] if said["label"]}),
            experiments=list(self._registry.experiments.values()),
        )

    def slide(self, slide: SlideEntry) -> str:
        tested = {run.key: run.stored[slide.slide_id].part for run in self._registry.runs.values()
                  if slide.slide_id in run.stored}  # fmt: skip
        runs = sorted(self._registry.runs.values(), key=lambda run: (tested.get(run.key) != "test", run.name))
        return self._render(
            "slide.html.j2",
            slide=slide,
            runs=[{"key": run.key, "name": run.name, "part": tested.get(run.key, "new")} for run in runs],
            modes=MODES,
            sequential=SEQUENTIAL,
            diverging=DIVERGING,
            has_library=self._has_library,
        )

    def results(self, experiment: Experiment) -> str:
        found = self._made(experiment)
        runs = [run for run in self._registry.runs.values() if run.experiment == experiment.key]
        return self._render(
            "results.html.j2",
            experiment=experiment,
            found=None if isinstance(found, str) else found,
            problem=found if isinstance(found, str) else None,
            runs=[_run_row(run) for run in runs],
        )

    def figure(self, experiment: Experiment, stem: str) -> bytes | None:
        found = self._made(experiment)
        return None if isinstance(found, str) or stem not in found.figures else found.figures[stem][1]

    def _case(self, slide: SlideEntry, models: list[str]) -> dict[str, Any]:
        """A row of the list: per model, what the run said that was tested on this slide (or validated, or trained)."""
        said = []
        for model in models:
            mine = [run.stored[slide.slide_id] for run in self._registry.runs.values()
                    if run.model == model and slide.slide_id in run.stored]  # fmt: skip
            first = min(mine, key=lambda one: ("test", "val", "train").index(one.part), default=None)
            if first is None:
                said.append({"text": "", "number": "", "part": "", "wrong": False, "label": False})
            else:
                called = first.predicted is not None
                number = f"{first.number:.3f}" if called else repr(first.number)
                said.append({"text": first.text, "number": number, "part": first.part, "wrong": first.wrong,
                             "label": called})  # fmt: skip
        return {"slide": slide, "said": said, "wrong": any(one["wrong"] for one in said)}

    def _made(self, experiment: Experiment) -> Results | str:
        with self._lock:
            if experiment.key not in self._results:
                try:
                    self._results[experiment.key] = _make(experiment)
                except MarbleError as error:
                    self._results[experiment.key] = error.what  # without the place: it names folders
            return self._results[experiment.key]

    def _render(self, name: str, **values: Any) -> str:
        return self._environment.get_template(name).render(**values)


def _make(experiment: Experiment) -> Results:
    comparison = compare(collect(experiment.folder))
    header, rows = table_rows(comparison)
    figures = {}
    for stem, (text, figure) in all_figures(comparison).items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight", dpi=140, metadata={"Software": None})
        figures[stem] = (text, buffer.getvalue())
    return Results(header, rows, caption(comparison), figures)


def _run_row(run: RunEntry) -> dict[str, str]:
    fit = run.record["fit"]
    return {
        "name": run.name,
        "epoch": f"{fit['best_epoch']} of {fit['epochs']}",
        "validation": f"{fit['selected_by']} {fit['val'][fit['selected_by']]:.3f}",
        "parameters": f"{run.record['model']['parameters']:,}",
        "id": run.record["job"],
    }
