"""Small jobs for tests of training: a made-up cohort, a split, a model that trains in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from marble import files
from marble.experiment import Experiment
from marble.models import COMMON, Recipe
from marble.training.run import PlannedRun

QUICK = replace(COMMON, epochs=3, warmup=1, lr=2e-3, patience=3)


def plan(
    folder: Path,
    kind: str = "burden",
    models: str = '[{ name = "abmil", hidden = 16, attention_dim = 8 }]',
    patients: int = 24,
    epochs: int = 3,
    repeats: int = 1,
    train: str = "",
    threads: int = 1,
    baselines: str = "[]",
) -> list[PlannedRun]:
    """An experiment on a synthetic cohort, planned below `folder`."""
    task = {"survival": "survival", "quantity": "regression"}.get(kind, "classification")
    named = "" if "recipe" in train else 'recipe = "common", '
    text = (
        f'cohort = {{ path = "synthetic:{kind}", patients = {patients} }}\ntask = "{task}"\n'
        f'split = {{ scheme = "kfold", folds = 4, repeats = {repeats} }}\n'
        f"train = {{ {named}epochs = {epochs}, warmup = 1, lr = 2e-3, orders = 2, val_orders = 1 {train} }}\n"
        f"models = {models}\nbaselines = {baselines}\n"
    )
    path = files.publish(folder / "tiny.toml", text)
    return Experiment.load(path).plan(folder / "out", threads=threads)


def with_recipe(planned: PlannedRun, **changes: Any) -> PlannedRun:
    recipe: Recipe = replace(planned.job.recipe, **changes)
    return planned.model_copy(update={"job": planned.job.model_copy(update={"recipe": recipe})})
