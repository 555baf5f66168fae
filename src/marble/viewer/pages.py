"""The HTML pages: rendered here, without inline script or style, everything escaped."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from marble.attribution import MODES
from marble.errors import MarbleError
from marble.heatmaps.colours import DIVERGING, SEQUENTIAL
from marble.reports.collect import collect
from marble.reports.compare import compare
from marble.reports.figures import all_figures
from marble.reports.tables import caption, table_rows
from marble.reports.together import together, together_rows
from marble.targets import SurvivalTime
from marble.training.results import validation_text
from marble.version import VERSION
from marble.viewer.notes import MAX_CHARACTERS
from marble.viewer.registry import LABEL, ExperimentEntry, Registry, RunEntry, SlideEntry, Truth
from marble.viewer.stored import StoredPrediction, said_together
from marble.viewer.tiles import top_zoom


@dataclass(frozen=True)
class Group:
    """All runs of one model in one experiment."""

    experiment: str  # key
    model: str
    runs: tuple[RunEntry, ...]

    @property
    def is_marble(self) -> bool:
        return bool(self.runs[0].record["model"]["name"] == "marble")

    @property
    def unit(self) -> str:
        """Of the numbers it predicts; risks and probabilities have none."""
        run = self.runs[0]
        return run.unit if any(said.miss is not None for said in run.stored.values()) else ""

    def said_of(self, slide_id: str) -> StoredPrediction | None:
        """What the runs say together that held the slide out; else the one that validated on it, or trained."""
        mine = [(run.stored[slide_id], run.record["calibration"]) for run in self.runs if slide_id in run.stored]
        held_out = [one for one in mine if one[0].part == "test"]
        if len(held_out) > 1:
            return said_together(self.runs[0].task, held_out)
        return min((one for one, _ in mine), key=lambda one: ("test", "val", "train").index(one.part), default=None)

    def trained_on(self, slide: SlideEntry) -> bool:
        """Whether a run learned from the slide; what it then says of it is not always stored."""
        return any(run.part_of(slide) == "train" for run in self.runs)


@dataclass(frozen=True)
class ResultsPage:
    """An experiment's table and figures, made once."""

    header: list[str]
    rows: list[list[str]]
    caption: str
    together: tuple[list[str], list[list[str]]] | None  # header and rows of the repeats as one
    figures: dict[str, tuple[str, bytes]] = field(repr=False)  # stem -> caption, PNG


#: the order in which a slide's runs are offered, and what each part is called
PARTS = {"test": "test", "val": "validation", "new": "new to it", "train": "in training"}
THUMBNAIL_ZOOM = 7  # the whole slide in at most 128 pixels


class Pages:
    """Every page, by name."""

    def __init__(self, registry: Registry, *, has_library: bool, has_notes: bool = False) -> None:
        self._registry, self._has_library, self._has_notes = registry, has_library, has_notes
        self._environment = Environment(
            loader=PackageLoader("marble.viewer", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        self._environment.globals.update(version=VERSION)
        self._results: dict[str, ResultsPage | str] = {}
        self._lock = Lock()

    @cached_property
    def cases(self) -> str:
        """The list; what there is was fixed at the start, so it is rendered once."""
        groups = self._groups
        rows = [self._case(slide, groups) for slide in self._registry.slides.values()]
        experiments = [self._registry.experiments[key] for key in dict.fromkeys(group.experiment for group in groups)]
        return self._render(
            "cases.html.j2",
            groups=groups,
            names={key: one.name for key, one in self._registry.experiments.items()},
            spans=[(one.name, sum(group.experiment == one.key for group in groups)) for one in experiments],
            rows=rows,
            labels=sorted({label for slide in self._registry.slides.values() for label in slide.labels}),
            truth_name=_truth_name(self._registry.slides.values()),
            misses=_far_off(rows),
            predictions=sorted({said["text"] for row in rows for said in row["said"] if said["label"]}),
            experiments=experiments,
        )

    def slide(self, slide: SlideEntry) -> str:
        keys = list(self._registry.slides)
        place = keys.index(slide.key)
        groups = sorted(self._groups, key=lambda group: not any(run.part_of(slide) == "test" for run in group.runs))
        return self._render(
            "slide.html.j2",
            slide=slide,
            groups=[{"name": self._group_name(group), "runs": _offered(group, slide)} for group in groups],
            previous=keys[place - 1] if place > 0 else None,
            following=keys[place + 1] if place + 1 < len(keys) else None,
            place=f"{place + 1} of {len(keys)}",
            modes=MODES,
            sequential=SEQUENTIAL,
            diverging=DIVERGING,
            has_library=self._has_library,
            has_notes=self._has_notes,
            note_characters=MAX_CHARACTERS,
        )

    def results(self, experiment: ExperimentEntry) -> str:
        found = self._made(experiment)
        runs = [run for run in self._registry.runs.values() if run.experiment == experiment.key]
        return self._render(
            "results.html.j2",
            experiment=experiment,
            found=None if isinstance(found, str) else found,
            problem=found if isinstance(found, str) else None,
            runs=[_run_row(run) for run in runs],
        )

    def figure(self, experiment: ExperimentEntry, stem: str) -> bytes | None:
        found = self._made(experiment)
        return None if isinstance(found, str) or stem not in found.figures else found.figures[stem][1]

    @cached_property
    def _groups(self) -> list[Group]:
        """Runs by experiment and model; MARBLE itself before what it is compared with."""
        runs: dict[tuple[str, str], list[RunEntry]] = {}
        for run in self._registry.runs.values():
            runs.setdefault((run.experiment, run.model), []).append(run)
        groups = [Group(experiment, model, tuple(mine)) for (experiment, model), mine in runs.items()]
        names = {key: one.name for key, one in self._registry.experiments.items()}
        return sorted(groups, key=lambda group: (names[group.experiment], not group.is_marble, group.model))

    def _group_name(self, group: Group) -> str:
        experiment = self._registry.experiments[group.experiment].name
        return f"{experiment}: {group.model}"

    def _case(self, slide: SlideEntry, groups: list[Group]) -> dict[str, Any]:
        """A row of the list: what each model says of the slide."""
        said = [_said(group.said_of(slide.slide_id), trained=group.trained_on(slide)) for group in groups]
        return {
            "slide": slide,
            "said": said,
            "wrong": any(one["wrong"] for one in said),
            "truth_number": _number_of(slide.truths),
            "thumbnail": _thumbnail(slide),
        }

    def _made(self, experiment: ExperimentEntry) -> ResultsPage | str:
        with self._lock:
            if experiment.key not in self._results:
                try:
                    self._results[experiment.key] = _make(experiment)
                except MarbleError as error:
                    self._results[experiment.key] = error.what  # without the place: it names folders
            return self._results[experiment.key]

    def _render(self, name: str, **values: Any) -> str:
        return self._environment.get_template(name).render(**values)


def _make(experiment: ExperimentEntry) -> ResultsPage:
    comparison = compare(collect(experiment.folder))
    header, rows = table_rows(comparison)
    figures = {}
    for stem, (text, figure) in all_figures(comparison).items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight", dpi=140, metadata={"Software": None})
        figures[stem] = (text, buffer.getvalue())
    pooled = together(comparison.results)
    both = together_rows(comparison.results, pooled) if pooled else None
    return ResultsPage(header, rows, caption(comparison), both, figures)


def _offered(group: Group, slide: SlideEntry) -> list[dict[str, str]]:
    """A group's runs as a menu shows them, the one that was tested on this slide first."""
    order = list(PARTS)
    runs = sorted(group.runs, key=lambda run: (order.index(run.part_of(slide)), run.repeat))
    return [
        {"key": run.key, "name": run.name, "part": part, "words": PARTS[part], "job": run.record["job"]}
        for run in runs
        for part in [run.part_of(slide)]
    ]


def _said(stored: StoredPrediction | None, *, trained: bool) -> dict[str, Any]:
    """A cell of the list: the words, the number they are sorted by, how sure, whether wrong or how far off.

    Of a slide that was only trained on there may be no words; the cell says then why.
    """
    if stored is None:
        return {
            "text": "",
            "small": "",
            "number": "",
            "sure": "",
            "part": PARTS["train"] if trained else "",
            "wrong": False,
            "label": False,
            "miss": "",
        }
    called = stored.predicted is not None
    return {
        "text": stored.text,
        "small": _beside(stored),
        "number": f"{stored.number:.3f}" if called else repr(stored.number),
        "sure": repr(stored.number) if called else "",
        "part": "" if stored.part == "test" else PARTS[stored.part],
        "wrong": stored.wrong,
        "label": called,
        "miss": "" if stored.miss is None else repr(abs(stored.miss)),
    }


def _beside(stored: StoredPrediction) -> str:
    """What stands small behind the prediction: how sure, how far the repeats lie apart, how far off."""
    words = [f"{stored.number:.3f}"] if stored.predicted is not None else []
    if stored.members > 1:
        words.append(f"± {stored.sd:.2g} ({stored.members} repeats)")
    if stored.miss is not None:
        words.append(f"error {stored.miss:+.3g}")
    return " ".join(words)


def _number_of(truths: Sequence[Truth]) -> str:
    """What a column of truths is sorted by where each is one number or time."""
    if len(truths) != 1:
        return ""
    target = truths[0].target
    if isinstance(target, SurvivalTime):
        return repr(target.time)
    return repr(target) if isinstance(target, float) else ""


def _truth_name(slides: Iterable[SlideEntry]) -> str:
    """What the column of truths is called: as its task calls them; of several tasks, the most general word."""
    names = {truth.name for slide in slides for truth in slide.truths}
    return names.pop() if len(names) == 1 else LABEL


def _far_off(rows: list[dict[str, Any]]) -> list[str]:
    """Errors of predicted numbers to filter by: one half, and one tenth, are that large or larger."""
    sizes = [float(said["miss"]) for row in rows for said in row["said"] if said["miss"] and not said["part"]]
    return [f"{size:.3g}" for size in np.quantile(sizes, (0.5, 0.9))] if sizes else []


def _thumbnail(slide: SlideEntry) -> str:
    """Where a small picture of the slide is; nothing if its file is not here."""
    identity = slide.bags[0].identity if slide.bags else None
    if slide.file is None or identity is None:
        return ""
    zoom = min(THUMBNAIL_ZOOM, top_zoom((identity.l0_width_px, identity.l0_height_px)))
    return f"/api/slides/{slide.key}/pixels/{zoom}/0/0"


def _run_row(run: RunEntry) -> dict[str, str]:
    fit = run.record["fit"]
    return {
        "name": run.name,
        "epoch": f"{fit['best_epoch']} of {fit['epochs']}",
        "validation": f"{fit['selected_by']} {validation_text(run.record)}",
        "parameters": f"{run.record['model']['parameters']:,}",
        "id": run.record["job"],
    }
