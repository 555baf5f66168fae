"""A fit without files of one's own: bags and targets in memory, planned as an experiment of one model would be."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.cohorts.cohort import Case, Cohort
from marble.cohorts.splits import Split, with_validation
from marble.errors import InputError
from marble.experiment.experiment import Experiment
from marble.experiment.spec import ExperimentSpec, TrainSpec
from marble.experiment.stock import Stock
from marble.identifiers import normal
from marble.models import model_options
from marble.specs import unknown_choice
from marble.targets import SurvivalTime, Target, TargetKind
from marble.tasks.registry import task_class
from marble.training.run import PlannedRun

#: bags as users have them: a store or its folder, bags, or arrays (N, D) of one level
Bags: TypeAlias = "BagStore | str | Path | Sequence[Any] | Mapping[str, Any]"


@dataclass(frozen=True)
class Given:
    """Bags in a store, and of each its patient and its target."""

    store: BagStore
    targets: dict[str, Target]
    patients: dict[str, str]
    task: str


def as_bag(features: Any, slide_id: str) -> Bag:
    """A bag as it is; an array (N, D) as a bag of one level whose tiles lie nowhere."""
    return features if isinstance(features, Bag) else Bag.of_tokens(torch.as_tensor(features), slide_id)


def collect(bags: Bags, targets: Any, folder: Path, task: str | None, groups: Any) -> Given:
    """Put the bags into a store (below `folder`, unless they are in one) and say what each is to be predicted as."""
    wanted = None if task is None else task_class(task).target_kind
    store, ids = _stored(bags, folder, list(targets) if isinstance(targets, Mapping) else None)
    of_bag = {slide: _target(value, slide, wanted) for slide, value in _aligned("targets", targets, ids).items()}
    patients = (
        {slide: normal(str(who)) for slide, who in _aligned("groups", groups, ids).items()}
        if groups is not None
        else {}
    )
    kind = _kind(of_bag.values())
    if wanted not in (None, kind):
        raise InputError(f"the targets are for {kind}, task is '{task}'")
    return Given(store, of_bag, {slide: patients.get(slide, slide) for slide in ids}, task or kind)


def plan_fit(
    given: Given,
    folder: Path,
    *,
    model: str,
    validation: float,
    test: Iterable[str],
    seed: int,
    threads: int,
    options: Mapping[str, Any],
) -> PlannedRun:
    """One planned run. `options` are the model's own and keys of `train`; an unknown one is refused by name."""
    cohort = _cohort(given)
    held_out = {normal(str(patient)) for patient in test}
    strangers = sorted(held_out - {case.case_id for case in cohort.cases})
    if strangers:
        raise InputError(f"patient '{strangers[0]}' of `test` has no bag")
    rest = tuple(case.case_id for case in cohort.cases if case.case_id not in held_out)
    whole = Split(train=rest, test=tuple(sorted(held_out)), scheme="python", repeat=0, seed=seed)
    split = with_validation(whole, cohort, validation)
    own, train = _routed(model, options)
    spec = ExperimentSpec.parse(
        {
            "name": "fit",
            "cohort": "in memory",
            "task": given.task,
            "split": {"seed": seed},
            "train": train,
            "models": [{"name": model, **own}],
            "baselines": [],
        }
    )
    experiment, stock = Experiment(spec, "fit", folder), Stock.of(cohort, given.store)
    (planned,) = experiment.plan_split(cohort, stock, split, folder, threads, False, required=("train", "val"))
    return planned


def _routed(model: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the model, and of its training."""
    mine, train = set(model_options(model)), set(TrainSpec.model_fields)
    for key in options:
        if key not in mine | train:
            raise InputError(unknown_choice(f"option of a fit of '{model}'", key, sorted(mine | train)))
    return (
        {key: value for key, value in options.items() if key in mine},
        {key: value for key, value in options.items() if key not in mine},
    )


def _stored(bags: Bags, folder: Path, names: list[str] | None) -> tuple[BagStore, list[str]]:
    if isinstance(bags, BagStore):
        return bags, names or bags.slide_ids()
    if isinstance(bags, str | Path):
        found = BagStore.find(bags)
        return found, names or found.slide_ids()
    named = bags.items() if isinstance(bags, Mapping) else enumerate(bags)
    store, ids = BagStore(folder / "bags"), []
    for name, features in named:
        bag = as_bag(features, name if isinstance(name, str) else f"bag-{name:05d}")
        if bag.slide_id in ids:
            raise InputError(f"two bags are called '{bag.slide_id}'", hint="Give every bag a slide_id of its own")
        store.save(bag)
        ids.append(bag.slide_id)
    if not ids:
        raise InputError("no bags to learn from")
    return store, ids


def _aligned(what: str, values: Any, ids: list[str]) -> dict[str, Any]:
    """{slide: value}, from a mapping or from values in the order of the bags."""
    if isinstance(values, Mapping):
        missing = [slide for slide in ids if slide not in values]
        if missing:
            raise InputError(f"{what} lacks '{missing[0]}'", hint="Give one for every bag")
        return {slide: values[slide] for slide in ids}
    found = list(values)
    if len(found) != len(ids):
        raise InputError(f"{len(found)} {what} for {len(ids)} bags")
    return dict(zip(ids, found, strict=True))


def _target(value: Any, slide: str, wanted: TargetKind | None) -> Target:
    """A class, a follow-up or a number, from what numpy, pandas and people write."""
    if isinstance(value, SurvivalTime):
        return value
    if isinstance(value, np.void | tuple | list | np.ndarray):
        return _follow_up(list(value.item() if isinstance(value, np.void) else value), slide)
    if isinstance(value, np.generic):
        value = value.item()
    if wanted == "regression":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"a regression target is a number, got {value!r}", where=slide)
        return float(value)
    if isinstance(value, float) and not value.is_integer():
        raise InputError(f"target {value!r} is no class", where=slide, hint='Say task="regression" for numbers')
    if not isinstance(value, Hashable) or value is None:
        raise InputError(f"target {value!r} is neither a class, a number nor (time, event)", where=slide)
    return normal(str(int(value) if isinstance(value, float) else value))


def _follow_up(pair: list[Any], slide: str) -> SurvivalTime:
    """(time, event), or scikit-survival's (event, time): the event is the one that is true or false."""
    if len(pair) != 2:
        raise InputError(f"a follow-up is (time, event), got {len(pair)} values", where=slide)
    first, second = pair
    time, event = (second, first) if isinstance(first, bool | np.bool_) else (first, second)
    return SurvivalTime(float(time), bool(event))


def _kind(targets: Iterable[Target]) -> TargetKind:
    kinds = {type(target) for target in targets}
    if len(kinds) != 1:
        raise InputError(f"targets are of several kinds: {', '.join(sorted(kind.__name__ for kind in kinds))}")
    kind = kinds.pop()
    return "survival" if kind is SurvivalTime else "regression" if kind is float else "classification"


def _cohort(given: Given) -> Cohort:
    slides: dict[str, list[str]] = {}
    for slide, patient in given.patients.items():
        slides.setdefault(patient, []).append(slide)
    cases = []
    for patient, own in sorted(slides.items()):
        targets = {given.targets[slide] for slide in own}
        if len(targets) > 1:
            raise InputError(
                f"bags of patient '{patient}' have several targets: {', '.join(map(str, sorted(targets, key=str)))}"
            )
        cases.append(Case(patient, tuple(sorted(own)), targets.pop()))
    classes = tuple(sorted({case.target for case in cases if isinstance(case.target, str)}))
    return Cohort("python", task_class(given.task).target_kind, tuple(cases), classes)
