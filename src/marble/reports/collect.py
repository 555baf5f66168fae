"""Finished runs, read back as tables can use them: predictions and records only, never a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marble.errors import InputError, RunError
from marble.specs import unknown_choice
from marble.targets import Target
from marble.tasks.base import Calibration, Scored, Task
from marble.tasks.metric import Ints, Metric
from marble.training.asked import not_asked_for
from marble.training.job import TaskSpec
from marble.training.results import StoredCase, find_runs, read_cases, read_run, validation_of

Floats = NDArray[np.float64]
REFERENCE = "marble"


@dataclass(frozen=True)
class Part:
    """The cases of one part (train, val, test) of one run."""

    patients: tuple[str, ...]
    targets: tuple[Target, ...]
    readouts: dict[str, Floats]  # {column: (n,)}
    order_sd: Floats

    @property
    def scored(self) -> Scored:
        return Scored(self.targets, self.readouts, self.patients)


@dataclass(frozen=True)
class Repeat:
    """One run of one model on one split."""

    folder: Path
    record: dict[str, Any]
    parts: dict[str, Part]
    metrics: dict[str, Metric]  # of the test part

    @property
    def number(self) -> int:
        return int(self.record["about"]["repeat"])

    @property
    def test(self) -> Part:
        return self.parts["test"]

    @property
    def task(self) -> Task:
        """As this run has it: beside a model trained on Cox's loss another may be trained in discrete time."""
        return TaskSpec.parse(self.record["task"], where=self.folder).build()

    @property
    def calibration(self) -> Calibration:
        found: Calibration = self.record["calibration"]
        return found

    def called(self, task: Task) -> Ints | None:
        """The class called for each test case, as an index into the task's classes; None if it has none."""
        return task.called(self.test.readouts, self.calibration)

    @property
    def selected_on(self) -> float:
        """The validation metric that chose its checkpoint; below all others where validation has none."""
        found = validation_of(self.record)
        return float("-inf") if found is None else found


@dataclass(frozen=True)
class ModelResults:
    """All repeats of one model, one per split; where variants compete, validation has chosen."""

    key: str
    repeats: tuple[Repeat, ...]
    variants: dict[str, tuple[Repeat, ...]] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        return self.repeats[0].record

    @property
    def task(self) -> Task:
        """What its runs were asked; the stored columns are the same in all of them."""
        return self.repeats[0].task

    def values(self, metric: str) -> list[Metric]:
        return [repeat.metrics[metric] for repeat in self.repeats]


@dataclass(frozen=True)
class Results:
    """One experiment's results."""

    experiment: str
    spec: TaskSpec
    task: Task
    models: tuple[ModelResults, ...]
    left_out: tuple[int, ...] = ()  # repeats that some model has not finished; the table compares the others
    asked: str | None = None  # the reference, where somebody chose one
    unit: str = ""  # of the number predicted, or of survival times
    not_asked_for: tuple[str, ...] = ()  # runs that the experiment, as it was last run, would make otherwise

    @property
    def metric_names(self) -> list[str]:
        return list(self.models[0].repeats[0].metrics)

    @property
    def reference(self) -> ModelResults | None:
        """The model all others are tested against: the one asked for, or the paper's MARBLE, that of most levels."""
        return _reference(self.models, self.asked)

    def accounting(self) -> dict[str, Any]:
        """Slides in = used + excluded by reason; the same for every run, or the report refuses."""
        counts = [repeat.record["about"]["slides"] for model in self.models for repeat in model.repeats]
        if any(count != counts[0] for count in counts):
            what = "runs of one table were made from different slides"
            raise RunError(what, where=self.experiment, hint=_unmixed(self.models))
        first: dict[str, Any] = counts[0]
        if first["in"] != first["used"] + sum(first["excluded"].values()):
            raise RunError(f"slides do not add up: {first}", where=self.experiment)
        return first


def _asked(task: TaskSpec) -> str:
    classes = f" of {', '.join(task.classes)}" if task.classes else ""
    return f"{task.name}{classes}"


def collect(root: str | Path, reference: str | None = None) -> Results:
    """Read every finished run below `root`; they must belong to one experiment and one task.

    `reference` names the model that all others are tested against.
    """
    folders = find_runs(root)
    if not folders:
        raise InputError("no finished run here", where=root, hint="Make runs with `marble run EXPERIMENT.toml`")
    records = {folder: read_run(folder) for folder in folders}
    experiments = {record["about"]["experiment"] for record in records.values()}
    if len(experiments) > 1:
        what = f"runs of several experiments: {', '.join(sorted(experiments))}"
        raise InputError(what, where=root, hint="Report one at a time")
    spec = TaskSpec.parse(records[folders[0]]["task"], where=folders[0])
    for folder, record in records.items():
        other = TaskSpec.parse(record["task"], where=folder)
        if (other.name, other.classes) != (spec.name, spec.classes):
            what = f"this run is of {_asked(other)}, and {folders[0]} of {_asked(spec)}"
            hint = "Remove the runs of earlier settings, or give `marble run` another --out"
            raise InputError(what, where=folder, hint=hint)
    by_key: dict[str, dict[str, list[Repeat]]] = defaultdict(lambda: defaultdict(list))
    _refuse_twins(records)
    for folder, record in records.items():
        about = record["about"]
        by_key[about["model"]][about["variant"]].append(_repeat(folder, record))
    models = tuple(_chosen(key, variants) for key, variants in by_key.items())
    models, left_out = _finished_by_all(models, root)
    _require_same_splits(models, root)
    _require_one_question(models, root)
    if reference is not None and reference not in by_key:
        raise InputError(unknown_choice("model", reference, list(by_key)), where="--reference")
    home = _reference(models, reference)
    ordered = tuple(sorted(models, key=lambda model: (model is not home, model.key)))
    unit = str(records[folders[0]]["about"].get("unit", ""))
    shown = {repeat.folder: repeat.record for model in ordered for repeat in _repeats_of(model)}
    return Results(experiments.pop(), spec, spec.build(), ordered, left_out, reference, unit, not_asked_for(shown))


def _repeats_of(model: ModelResults) -> Iterator[Repeat]:
    """Of a model all that have a part in the table, variants that were not chosen too."""
    yield from model.repeats
    for repeats in model.variants.values():
        yield from repeats


def _refuse_twins(records: Mapping[Path, dict[str, Any]]) -> None:
    """Refuse a run that is there twice, as in a copy or under two `--out`: the better one would be taken."""
    homes: dict[tuple[str, str, int], Path] = {}
    for folder, record in records.items():
        about = record["about"]
        other = homes.setdefault((about["model"], about["variant"], about["repeat"]), folder)
        if other is not folder:
            what = f"two runs are repeat {about['repeat']} of '{about['model']}'"
            hint = "Give the folder of one experiment, or move copies elsewhere"
            raise InputError(what, where=f"{other} and {folder}", hint=hint)


def _repeat(folder: Path, record: dict[str, Any]) -> Repeat:
    task = TaskSpec.parse(record["task"], where=folder).build()
    cases = read_cases(folder, task)
    names = dict.fromkeys(case.part for case in cases)
    parts = {name: _part([case for case in cases if case.part == name], task) for name in names}
    if "test" not in parts:
        raise RunError("no test prediction", where=folder)
    train = parts["train"].scored if "train" in parts else None
    return Repeat(folder, record, parts, task.report_metrics(parts["test"].scored, train, record["calibration"]))


def _part(cases: Sequence[StoredCase], task: Task) -> Part:
    return Part(
        patients=tuple(case.case_id for case in cases),
        targets=tuple(case.target for case in cases),
        readouts={name: np.array([case.readout[name] for case in cases]) for name in task.columns},
        order_sd=np.array([case.order_sd for case in cases]),
    )


def _chosen(key: str, variants: dict[str, list[Repeat]]) -> ModelResults:
    """Of several variants, the one with the best validation metric in each split; the first of equals."""
    ordered = {name: tuple(sorted(repeats, key=lambda r: r.number)) for name, repeats in sorted(variants.items())}
    numbers = sorted({repeat.number for repeats in ordered.values() for repeat in repeats})
    chosen = []
    for number in numbers:
        candidates = [repeat for repeats in ordered.values() for repeat in repeats if repeat.number == number]
        chosen.append(max(candidates, key=lambda repeat: repeat.selected_on))
    return ModelResults(key, tuple(chosen), ordered if len(ordered) > 1 else {})


def _finished_by_all(
    models: Sequence[ModelResults], root: str | Path
) -> tuple[tuple[ModelResults, ...], tuple[int, ...]]:
    """The models with the repeats that each of them has finished, and the numbers of the other repeats."""
    numbers = [
        {repeat.number for repeat in repeats}
        for model in models
        for repeats in (model.variants.values() if model.variants else (model.repeats,))
    ]
    common, all_of_them = set.intersection(*numbers), set.union(*numbers)
    if not common:
        raise RunError(
            "no repeat was finished by all models", where=root, hint="Finish the experiment's runs with `marble run`"
        )
    kept = tuple(
        replace(
            model,
            repeats=tuple(repeat for repeat in model.repeats if repeat.number in common),
            variants={
                name: tuple(repeat for repeat in repeats if repeat.number in common)
                for name, repeats in model.variants.items()
            },
        )
        for model in models
    )
    return kept, tuple(sorted(all_of_them - common))


def _require_same_splits(models: Sequence[ModelResults], root: str | Path) -> None:
    """A table compares only runs on the same patients, and on one truth: paired tests take it from either model."""
    first = models[0]
    for model in models[1:]:
        if _tested(model) != _tested(first):
            what = f"'{model.key}' and '{first.key}' were not tested on the same patients in the same repeats"
            raise RunError(what, where=root, hint=_unmixed(models))
        if [repeat.test.targets for repeat in model.repeats] != [repeat.test.targets for repeat in first.repeats]:
            what = f"runs of '{model.key}' and '{first.key}' have other targets for the same patients"
            raise RunError(what, where=root, hint=_unmixed(models))


def _tested(model: ModelResults) -> list[tuple[int, tuple[str, ...]]]:
    """Whose predictions each repeat of a model is judged by."""
    return [(repeat.number, repeat.test.patients) for repeat in model.repeats]


def _require_one_question(models: Sequence[ModelResults], root: str | Path) -> None:
    """A table has one rule of calling, and a row is of runs on one loss: Cox's, or that of discrete time."""
    if len({repeat.task.looked_for for model in models for repeat in model.repeats}) > 1:
        what = "some runs call a class from a threshold on and others do not, or look for another class"
        raise RunError(what, where=root, hint=_unmixed(models))
    for model in models:
        if len({repeat.task.columns for repeat in model.repeats}) > 1:
            what = f"the repeats of '{model.key}' were trained on different losses"
            raise RunError(what, where=root, hint=_unmixed(models))


def _unmixed(models: Sequence[ModelResults]) -> str:
    """What to do about runs that do not go together."""
    earlier = not_asked_for({repeat.folder: repeat.record for one in models for repeat in one.repeats})
    if not earlier:
        return "Finish all runs of the experiment with `marble run`"
    return f"Remove the runs of earlier settings ({', '.join(earlier)}), or give another --out"


def _reference(models: Sequence[ModelResults], asked: str | None) -> ModelResults | None:
    """The model of that name; else of those that are MARBLE the one that reads most levels, the first of equals."""
    named = [model for model in models if model.key == (asked or REFERENCE)]
    marbles = [model for model in models if model.record["model"]["name"] == "marble"]
    return next(iter(named or sorted(marbles, key=_levels, reverse=True)), None)


def _levels(model: ModelResults) -> int:
    """How many levels it reads; unless its options say so, as many as there are."""
    found = model.record["model"].get("options", {}).get("levels")
    return len(model.record.get("bags", {}).get("levels", ())) if found is None else int(found)
