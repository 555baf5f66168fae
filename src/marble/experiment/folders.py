"""Where the runs of an experiment lie: a folder for each model, and for each value that validation chooses from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marble.errors import SpecError
from marble.experiment.spec import ModelSpec
from marble.identifiers import printable
from marble.training.asked import ASKED

#: what an experiment keeps beside the folders of its models
OWN_FOLDERS = ("cohort", "held-out", "report", ASKED)


def variants(model: ModelSpec) -> list[tuple[str, dict[str, Any]]]:
    """(name, options) of every combination of the values to choose from; one unnamed if there is nothing to choose."""
    names = list(model.choose)
    combinations = itertools.product(*(model.choose[name] for name in names))
    return [
        (",".join(f"{name}={value}" for name, value in zip(names, values, strict=True)),
         {**model.options, **dict(zip(names, values, strict=True))})
        for values in combinations
    ]  # fmt: skip


def folder_of(model: ModelSpec, variant: str) -> str:
    """The name of the folder that holds the runs of a model, or of one of its variants."""
    return "".join(c if c.isalnum() or c in "-_.=,() " else "_" for c in _called(model, variant))


def check_folders(name: str, models: Sequence[ModelSpec], path: Path) -> None:
    """Refuse names that are no folder of their own below `--out`: elsewhere, another model's, or the report's."""
    if name.startswith(".") or any(each in "/\\" or not each.isprintable() for each in name):
        hint = "Give a `name` without slashes that does not start with a point"
        raise SpecError(f"the experiment's folder cannot be called '{printable(name)}'", where=path, hint=hint)
    taken = {own: f"the experiment's folder '{own}'" for own in OWN_FOLDERS}
    for model in models:
        for variant, _ in variants(model):
            folder = folder_of(model, variant).casefold()  # there are file systems that do not tell a from A
            called = printable(_called(model, variant))
            if folder.startswith("."):
                hint = "Give a `label` that starts with a letter or a digit"
                raise SpecError(f"a model's folder cannot be called '{called}'", where=path, hint=hint)
            if folder in taken:
                what = f"the runs of model '{called}' would lie in {taken[folder]}"
                raise SpecError(what, where=path, hint="Give it another `label`")
            taken[folder] = f"the folder of model '{called}'"


def _called(model: ModelSpec, variant: str) -> str:
    return f"{model.key} {variant}" if variant else model.key
