"""A fit without files of one's own: bags and targets in memory, planned as an experiment of one model would be."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from marble.bags.bag import Bag
from marble.bags.numbers import tensor_of
from marble.bags.store import BagStore
from marble.cohorts.assemble import sorted_classes
from marble.cohorts.cohort import Case, Cohort
from marble.cohorts.fields import class_key
from marble.cohorts.splits import Split, with_validation
from marble.compute.limits import MAX_THREADS
from marble.errors import BagError, InputError
from marble.experiment.experiment import Experiment
from marble.experiment.leaks import leaks_between_parts
from marble.experiment.spec import ExperimentSpec, TrainSpec
from marble.experiment.stock import Stock
from marble.identifiers import normal, spelling_key
from marble.models import model_options
from marble.specs import unknown_choice
from marble.targets import SurvivalTime, Target, TargetKind
from marble.tasks.registry import task_class
from marble.training.run import PlannedRun

#: bags as users have them: a store or its folder, bags, or arrays (N, D) of one level
Bags: TypeAlias = "BagStore | str | Path | Sequence[Any] | Mapping[str, Any]"

_ONE_HOT = {(0.0, True), (1.0, False)}  # rows 0 1 and 1 0, read as (time, event)
_GAPS_AS_TEXT = frozenset({"nan", "None", "NaT", "<NA>"})  # what `.astype(str)` makes of what is missing


@dataclass(frozen=True)
class Given:
    """Bags in a store, and of each its patient and its target."""

    store: BagStore
    targets: dict[str, Target]
    patients: dict[str, str]
    task: str


def as_bag(features: Any, slide_id: str) -> Bag:
    """A bag as it is; an array (N, D) as one level whose tiles lie nowhere, in float32 unless it is float16."""
    if isinstance(features, Bag):
        return features
    try:  # numpy reads tables of pandas and lists of lists
        tokens = tensor_of(features, "tokens").detach()
    except BagError as error:
        raise BagError(error.what, where=slide_id, hint=error.hint) from None
    if tokens.dtype.is_complex:
        raise InputError("complex numbers are no features", where=slide_id)
    # numpy and pandas make float64 of whatever is not said to be less
    return Bag.of_tokens(tokens if tokens.dtype == torch.float16 else tokens.to(torch.float32), slide_id)


def collect(bags: Bags, targets: Any, folder: Path, task: str | None, groups: Any) -> Given:
    """Put the bags into a store (below `folder`, unless they are in one) and say what each is to be predicted as."""
    wanted = None if task is None else task_class(task).target_kind
    if isinstance(bags, BagStore | str | Path):
        targets, groups = _keyed("targets", targets), _keyed("groups", groups)
    store, ids = _stored(bags, folder, list(targets) if isinstance(targets, Mapping) else None)
    of_bag = {slide: _target(value, slide, wanted) for slide, value in _aligned("targets", targets, ids).items()}
    patients = {} if groups is None else _patients(_aligned("groups", groups, ids))
    kind = _kind(of_bag.values())
    if task is None and {(one.time, one.event) for one in of_bag.values() if isinstance(one, SurvivalTime)} == _ONE_HOT:
        hint = 'Give each bag its class, as targets.argmax(1); or say task="survival"'
        raise InputError("targets look like two classes as columns of 0 and 1 (one-hot)", hint=hint)
    _one_spelling("class", {slide: target for slide, target in of_bag.items() if isinstance(target, str)}, class_key)
    if wanted not in (None, kind):
        raise InputError(f"the targets are for {kind}, task is '{task}'")
    return Given(store, of_bag, {slide: patients.get(slide, slide) for slide in ids}, task or kind)


def thread_count(asked: Any) -> int:
    """How many threads a fit sums with."""
    if isinstance(asked, bool) or not isinstance(asked, int | np.integer) or not 1 <= asked <= MAX_THREADS:
        raise InputError(f"threads are a whole number from 1 to {MAX_THREADS}, got {asked!r}")
    return int(asked)


def plan_fit(
    given: Given,
    folder: Path,
    *,
    model: str,
    validation: float,
    test: Iterable[Any],
    seed: int,
    threads: int,
    allow_leaks: bool,
    options: Mapping[str, Any],
) -> PlannedRun:
    """One planned run. `options` are the model's own and keys of `train`; an unknown one is refused by name."""
    cohort = _cohort(given)
    if isinstance(validation, bool) or not isinstance(validation, int | float | np.number):
        raise InputError(f"validation is a share between 0 and 1, got {validation!r}")
    if isinstance(test, str) or not isinstance(test, Iterable):
        raise InputError(f"`test` is a list of patients, got {test!r}", hint="Put one patient into a list too")
    held_out = {_patient(_without_torch(patient), "test") for patient in test}
    strangers = sorted(held_out - {case.case_id for case in cohort.cases})
    if strangers:
        raise InputError(f"patient '{strangers[0]}' of `test` has no bag")
    rest = tuple(case.case_id for case in cohort.cases if case.case_id not in held_out)
    own, train = _routed(model, options)
    spec = ExperimentSpec.parse(
        {
            "name": "fit",
            "cohort": "in memory",
            "task": given.task,
            "split": {"seed": seed, "allow_leaks": allow_leaks},
            "train": train,
            "models": [{"name": model, **own}],
            "baselines": [],
        }
    )
    whole = Split(train=rest, test=tuple(sorted(held_out)), scheme="python", repeat=0, seed=spec.split.seed)
    split = with_validation(whole, cohort, validation)
    if not split.train or not split.val:
        what = f"{len(rest)} patients are too few to learn on and to set {validation:g} of them aside for validation"
        raise InputError(what, hint="Give more bags, a larger `validation`, or fewer patients in `test`")
    experiment, stock = Experiment(spec, "fit", folder), Stock.of(cohort, given.store)
    for error in stock.odd.values():
        raise error
    (leaks,) = leaks_between_parts([split], cohort, stock, allowed=spec.split.allow_leaks)
    (planned,) = experiment.plan_split(
        cohort, stock, split, folder, threads, False, required=("train", "val"), leaks=leaks
    )
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
    if isinstance(bags, BagStore | str | Path):
        found = bags if isinstance(bags, BagStore) else BagStore.find(bags)
        return found, found.slide_ids() if names is None else _known(names, found)
    if isinstance(bags, Bag) or not isinstance(bags, Iterable):
        raise InputError(f"bags are a store, its folder or a list, got {type(bags).__name__}")
    if isinstance(bags, Mapping):
        _check_names(list(bags), "bags")
    named = bags.items() if isinstance(bags, Mapping) else ((f"bag-{k:05d}", bag) for k, bag in enumerate(bags))
    store, ids = BagStore(folder / "bags"), []
    for name, features in named:
        bag = as_bag(features, name)
        if bag.slide_id in ids:
            raise InputError(f"two bags are called '{bag.slide_id}'", hint="Give every bag a slide_id of its own")
        store.save(bag)
        ids.append(bag.slide_id)
    if not ids:
        raise InputError("no bags to learn from")
    return store, ids


def _check_names(names: list[Any], where: str) -> None:
    number = next((name for name in names if not isinstance(name, str)), None)
    if number is not None:
        hint = "Read the table with dtype=str: as a number, 0012 is 12"
        raise InputError(f"slide ids are text, got {number!r}", where=where, hint=hint)


def _known(names: list[Any], store: BagStore) -> list[str]:
    """The slides that targets are given for, each of which must have a bag."""
    _check_names(names, "targets")
    held = set(store.slide_ids())
    strangers = [name for name in names if name not in held]
    if strangers:
        more = f" nor have {len(strangers) - 1} others" if len(strangers) > 1 else ""
        raise InputError(
            f"'{strangers[0]}' of targets has no bag{more}", where=store.root, hint="Give slide ids, without endings"
        )
    return list(names)


def _keyed(what: str, values: Any, ids: Sequence[str] | None = None) -> Any:
    """A pandas Series by its index, where that holds slide ids, so that its order need not be that of the bags.

    Of bags in a store (`ids` is None) any text is taken for ids; of others, an index that holds every one of theirs.
    """
    index = getattr(values, "index", None)
    if isinstance(values, Mapping) or index is None or callable(index) or not hasattr(values, "to_dict"):
        return values
    names = list(index)
    if not (all(isinstance(name, str) for name in names) if ids is None else set(ids) <= set(names)):
        return values
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the index of {what} holds '{twice}' more than once", hint="Keep one row per slide")
    return values.to_dict()


def _aligned(what: str, values: Any, ids: list[str]) -> dict[str, Any]:
    """{slide: value}, from a mapping, a Series by slide id, or from values in the order of the bags."""
    values = _keyed(what, values, ids)
    if isinstance(values, Mapping):
        missing = [slide for slide in ids if slide not in values]
        if missing:
            raise InputError(f"{what} lacks '{missing[0]}'", hint="Give one for every bag")
        return {slide: values[slide] for slide in ids}
    shape = tuple(getattr(values, "shape", ()))
    if hasattr(values, "columns") or shape[1:] == (1,):
        hint = "Give one column, as table['label'] or array[:, 0], or a list of (time, event)"
        raise InputError(f"{what} is a table of {shape[1]} column{'' if shape[1] == 1 else 's'}", hint=hint)
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{what} are a list or a dictionary by slide id, got {type(values).__name__}")
    found = list(values)
    if len(found) != len(ids):
        raise InputError(f"{len(found)} {what} for {len(ids)} bags")
    return dict(zip(ids, found, strict=True))


def _target(value: Any, slide: str, wanted: TargetKind | None) -> Target:
    """A class, a follow-up or a number, from what numpy, pandas, torch and people write."""
    value = _without_torch(value)
    if isinstance(value, SurvivalTime | np.void | tuple | list | np.ndarray):
        return follow_up(value, slide)
    if isinstance(value, np.datetime64 | np.timedelta64) and not np.isnat(value):  # .item() makes numbers of some
        raise InputError(f"{value!r} is no target", where=slide, hint="Give a duration as a number, such as of days")
    if isinstance(value, np.generic):
        value = value.item()
    if wanted == "regression":
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"a regression target is a finite number, got {value!r}", where=slide)
        return float(value)
    if _is_gap(value):
        raise InputError(
            f"the target is missing ({value!r})", where=slide, hint="Leave the bag out, or give its target"
        )
    if isinstance(value, float) and not value.is_integer():
        hint = "Give (time, event)" if wanted == "survival" else 'Say task="regression" for numbers'
        raise InputError(f"target {value!r} is no class", where=slide, hint=hint)
    if not isinstance(value, Hashable):
        raise InputError(f"target {value!r} is neither a class, a number nor (time, event)", where=slide)
    return text_of(value)


def _without_torch(value: Any) -> Any:
    """A number of torch's as numpy's."""
    if not isinstance(value, torch.Tensor):
        return value
    kept = value.detach().cpu()
    plain = (kept.float() if kept.dtype == torch.bfloat16 else kept).numpy()  # numpy has no bfloat16
    return plain if plain.ndim else plain[()]


def text_of(value: Any) -> str:
    """A class or a patient as the text that stands for it in a run: 3, 3.0, numpy's and torch's 3 are "3"."""
    value = _without_torch(value)
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):  # as HDF5 files hold text
        plain = plain.decode(errors="replace")
    return normal(str(int(plain) if isinstance(plain, float) and plain.is_integer() else plain))


def _is_gap(value: Any) -> bool:
    """Whether this is what notebooks have where nothing is known: None, NaN, NaT, NA, these as text, or no text."""
    if value is None or type(value).__name__ in ("NaTType", "NAType") or str(value) in _GAPS_AS_TEXT:
        return True
    return math.isnan(value) if isinstance(value, float | np.floating) else not str(value).strip()


def _patient(value: Any, where: str) -> str:
    if _is_gap(value):
        raise InputError(f"the patient is missing ({value!r})", where=where, hint="Give the patient of every bag")
    return text_of(value)


def _patients(groups: Mapping[str, Any]) -> dict[str, str]:
    """{slide: patient}; two spellings of one patient are refused, as in a table."""
    found = {slide: _patient(value, slide) for slide, value in groups.items()}
    _one_spelling("patient", found, spelling_key)
    return found


def _one_spelling(what: str, names: Mapping[str, str], key: Callable[[str], str]) -> None:
    """Refuse two spellings of one thing, as in a table."""
    spelt: dict[str, str] = {}
    for slide, name in names.items():
        before = spelt.setdefault(key(name), name)
        if before != name:
            raise InputError(
                f"{what} '{name}' is '{before}' elsewhere", where=slide, hint=f"Write one {what} in one way"
            )


def follow_up(value: Any, slide: str) -> SurvivalTime:
    """From (time, event), or scikit-survival's (event, time): the event is the one that is true or false."""
    if isinstance(value, SurvivalTime):
        return value
    value = _without_torch(value)
    pair = list(value.item() if isinstance(value, np.void) else value)
    if len(pair) != 2:
        raise InputError(f"a follow-up is (time, event), got {len(pair)} values", where=slide)
    first, second = pair
    time, event = map(_without_torch, (second, first) if isinstance(first, bool | np.bool_) else (first, second))
    if isinstance(event, np.generic):
        event = event.item()
    if isinstance(time, bool | np.bool_ | np.timedelta64) or not isinstance(time, int | float | np.number):
        raise InputError(f"a time is a number, got {time!r}", where=slide)
    if not 0 <= time < math.inf:
        raise InputError(f"a time is a number from 0 on, got {time!r}", where=slide)
    if not isinstance(event, bool | int | float) or event not in (0, 1):  # bool(nan) and bool("0") are true
        raise InputError(f"an event is True or False, 1 or 0, got {event!r}", where=slide)
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
    classes = sorted_classes({case.target for case in cases if isinstance(case.target, str)})
    return Cohort("python", task_class(given.task).target_kind, tuple(cases), classes)
