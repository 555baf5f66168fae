"""Every setting can be set: each field of each spec by a key of a file and, for an extraction, by `--set` too."""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import marble
from marble.bags.store import BagStore
from marble.cli import assemble, slide_options
from marble.errors import SpecError
from marble.experiment import Experiment, ExperimentSpec
from marble.extract import ExtractSpec, Machine
from marble.heatmaps.write import HeatmapSpec
from marble.interchange import ImportSpec
from marble.models import Recipe
from marble.slides.quality import QualitySpec
from marble.specs import Spec, read_toml
from marble.synthetic.slides import write_slide
from marble.tasks.registry import TASKS, task_class
from marble.training.job import TaskSpec
from tests.cli.commands import marble as run

#: specs that the program writes for itself; no user sets them
RECORDS = {
    "BagRecord", "CaseSpec", "EncoderIdentity", "FitJob", "Geometry", "HeldOut", "LevelCount", "PlannedRun",
    "Provenance", "SlideIdentity", "Split", "TargetSpec", "TaskSpec",
}  # fmt: skip


def _all_specs() -> set[type[Spec]]:
    root = Path(marble.__file__).parent
    for path in root.rglob("*.py"):
        if "Spec" in path.read_text() and path.stem != "__init__":
            importlib.import_module(".".join(("marble", *path.relative_to(root).with_suffix("").parts)))
    found, waiting = set(), [Spec]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind is not Spec and kind.__module__.startswith("marble."):
            found.add(kind)
    return found


def _inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _inside(part)


def _tree(root: type[BaseModel]) -> set[type[BaseModel]]:
    found, waiting = set(), [root]
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting += [inner for field in kind.model_fields.values() for inner in _inside(field.annotation)]
    return found


def test_every_spec_is_reached_from_a_file_or_is_a_record() -> None:
    reached = {kind.__name__ for root in (ExperimentSpec, ExtractSpec) for kind in _tree(root)}
    assert {kind.__name__ for kind in _all_specs()} - reached <= RECORDS
    assert not reached & RECORDS


def _leaves(kind: type[BaseModel], value: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in kind.model_fields.items():
        inner = [found for found in _inside(field.annotation) if isinstance(value.get(name), dict)]
        if inner:
            yield from _leaves(inner[0], value[name], f"{path}{name}.")
        else:
            yield f"{path}{name}", value.get(name)


FULL = ExtractSpec.parse({"pyramid": {"magnifications": (5, 20), "coverage": (0.1, 0.2)}, "encoders": ("colour",)})


@pytest.mark.parametrize(("key", "value"), list(_leaves(ExtractSpec, FULL.model_dump(mode="json"))))
def test_every_setting_of_an_extraction_by_set_and_by_file(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(FULL.to_toml())
    assert read_toml(path) == tomllib.loads(FULL.to_toml())
    given = slide_options.LatticeFlags()
    said = slide_options.settings(path, [f"{key}={json.dumps(value)}"], given)
    assert slide_options.extract_spec(said, path) == FULL  # the key exists, and its value is what it was
    with pytest.raises(SpecError, match="unknown key"):
        slide_options.extract_spec(slide_options.settings(path, [f"{key}x=1"], given), path)


def test_flags_win_over_set_and_set_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(FULL.to_toml())
    given = slide_options.LatticeFlags(magnifications="2.5,10", tile_px=128, coverage="0.5", allow_upsample=True)
    pairs = ["batch=3", "pyramid.tile_px=64", "tissue.pen_marks=false", "dtype=float32"]
    spec = slide_options.extract_spec(slide_options.settings(path, pairs, given, "lite0", batch=7), path)
    assert spec.pyramid.magnifications == (2.5, 10)
    assert spec.pyramid.coverage == (0.5, 0.5)
    assert (spec.pyramid.tile_px, spec.batch, spec.tissue.pen_marks, spec.dtype) == (128, 7, False, "float32")
    assert spec.encoders == ("lite0",)
    assert spec.pyramid.allow_upsample


def test_a_store_made_by_its_own_spec_file_is_the_same_store(tmp_path: Path) -> None:
    write_slide(tmp_path / "a.tiff", (1536, 1280), mpp=0.5, seed=1)
    words = ("extract", tmp_path / "a.tiff", "--store", tmp_path / "bags")
    first = run(*words, "--magnifications", "5,20", "--encoder", "colour", "--set", "tissue.min_chroma=4", "--batch", 8)
    assert first.code == 0, first.err
    (store,) = (tmp_path / "bags").iterdir()
    assert run(*words, "--spec", store / "extract.toml").code == 0
    assert list((tmp_path / "bags").iterdir()) == [store]
    notes = BagStore(store).load("a").provenance.notes["extract"]
    assert (notes["tissue"]["min_chroma"], notes["batch"]) == (4.0, 8)


def _options(verb: str) -> set[str]:
    command = next(one for one in assemble(verb).registered_commands if one.name == verb)
    assert command.callback is not None
    return set(command.callback.__annotations__)


def test_settings_of_machines_heatmaps_and_imports_are_flags() -> None:
    assert {field.name for field in fields(Machine)} <= _options("extract")
    assert {field.name for field in fields(HeatmapSpec)} <= _options("heatmap")
    assert {field.name for field in fields(ImportSpec)} <= _options("import")


#: a choice of every kind that an experiment can make, none of them the default
CHOICES = """
cohort = { path = "synthetic:cross-scale", patients = 12 }
task = "classification"
decision = "threshold"
positive = "negative"
unit = "months"
models = [{ name = "mean" }]
baselines = []

[train]
recipe = "common"
standardise = true
linear_term = true
share_folds = 2
members = 2
optimizer = "lookahead-adam"
lr = 1e-3
betas = [0.8, 0.9]
weight_decay = 0.5
decay_exempt = false
schedule = "multistep"
lr_min = 1e-6
milestones = [2, 3]
gamma = 0.5
plateau_patience = 2
warmup = 1
epochs = 4
patience = 3
patience_from = 2
select_by = "loss"
choose_from = 2
accumulate = 2
accumulate_by = "sum"
clip = 2.0
clip_per_group = true
sampling = "weighted"
ema = 0.5
precision = "bfloat16"
class_loss = "bernoulli"
survival_loss = "nll"
bins = 6
alpha = 0.5
risk_set = "group"
group = 8
regression_loss = "huber"
class_weights = "balanced"
"""
#: side predictions are smoothed with cross-entropy alone
EXCLUSIVE = ('class_loss = "bernoulli"', "side_label_smoothing = 0.1")
#: what the cohort says, and the fit
OF_THE_DATA = {"name", "classes", "target_mean", "target_sd"}


def test_every_choice_of_a_recipe_and_a_task_is_a_key_of_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "choices.toml"
    unset = {field.name for field in fields(Recipe)} | set(TaskSpec.model_fields) - OF_THE_DATA
    for text in (CHOICES, CHOICES.replace(*EXCLUSIVE)):
        path.write_text(text)
        job = Experiment.load(path).plan(tmp_path / "runs")[0].job
        said = tomllib.loads(text)
        said |= said.pop("train")
        for field in fields(Recipe):
            default, value = getattr(Recipe(), field.name), getattr(job.recipe, field.name)
            assert value == (tuple(said[field.name]) if isinstance(value, tuple) else said.get(field.name, default))
            unset -= {field.name} if value != default else set()
        for name, about in TaskSpec.model_fields.items():
            if name not in OF_THE_DATA:
                assert getattr(job.task, name) == said.get(name, about.default)
                unset -= {name} if getattr(job.task, name) != about.default else set()
    assert not unset


def test_a_task_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('cohort = "a.csv"\ntask = "clasification"\nmodels = [{ name = "mean" }]\n')
    refused = run("run", path, "--out", tmp_path / "runs")
    assert refused.code == 2
    assert "task: unknown task 'clasification'; did you mean 'classification'?" in refused.err
    assert "Valid: classification, survival, regression" in refused.err


def test_limits_of_quality_are_flags(tmp_path: Path) -> None:
    assert set(QualitySpec.model_fields) <= _options("extract") & _options("tile")
    write_slide(tmp_path / "a.tiff", (1536, 1280), mpp=0.5, seed=1)
    limits = ("--min-sharpness", 0.01, "--max-fold", 0.9, "--max-pen", 0.8, "--max-edge", 0.7)
    done = run("extract", tmp_path / "a.tiff", "--store", tmp_path / "bags", "--magnifications", "5,20",
               "--encoder", "colour", "--set", "quality.max_pen=0.1", *limits)  # fmt: skip
    assert done.code == 0, done.err
    (store,) = (tmp_path / "bags").iterdir()
    wanted = {"min_sharpness": 0.01, "max_fold": 0.9, "max_pen": 0.8, "max_edge": 0.7}
    assert read_toml(store / "extract.toml")["quality"] == wanted
    tiled = ("tile", tmp_path / "a.tiff", "--out", tmp_path / "out", "--magnifications", "5,20")
    by_flag, by_set = run(*tiled, "--min-sharpness", 0.2), run(*tiled, "--set", "quality.min_sharpness=0.2")
    assert by_flag == by_set
    assert by_flag != run(*tiled)  # something is left out
    assert run(*tiled, "--max-pen", 2).code == 2


#: a value for every field of every task that is neither its default nor the data's to say
OF_A_TASK = {
    "classification": {"class_weights": "[1.0, 2.5]", "class_loss": '"cross-entropy"', "side_label_smoothing": "0.1"},
    "classification-loss": {"class_loss": '"bernoulli"'},
    "survival": {"survival_loss": '"nll"', "bins": "3", "risk_set": '"group"', "alpha": "0.25"},
    "regression": {"regression_loss": '"huber"'},
}


@pytest.mark.parametrize("name", TASKS)
def test_every_field_of_every_task_is_a_key_of_an_experiment(tmp_path: Path, name: str) -> None:
    kind = task_class(name)
    assert is_dataclass(kind)
    unset = {field.name for field in fields(kind)} - {"classes", "mean", "sd"}
    defaults = {field.name: field.default for field in fields(kind)}
    cohort = {"classification": "cross-scale", "survival": "survival", "regression": "quantity"}[name]
    for choices in (keys for about, keys in OF_A_TASK.items() if about.partition("-")[0] == name):
        train = "\n".join(f"{key} = {value}" for key, value in choices.items())
        decision = 'decision = "threshold"\npositive = "negative"\n' if name == "classification" else ""
        path = tmp_path / "task.toml"
        path.write_text(
            f'cohort = {{ path = "synthetic:{cohort}", patients = 24 }}\ntask = "{name}"\n{decision}'
            f'models = [{{ name = "mean" }}]\nbaselines = []\n[train]\nrecipe = "common"\n{train}\n'
        )
        task = Experiment.load(path).plan(tmp_path / "runs")[0].job.task.build()
        unset -= {field for field in unset if getattr(task, field) != defaults[field]}
    assert not unset


def test_class_weights_that_do_not_fit_the_classes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.toml"
    text = 'cohort = { path = "synthetic:cross-scale", patients = 24 }\ntask = "classification"\n'
    path.write_text(text + 'models = [{ name = "mean" }]\ntrain = { class_weights = [1.0, 2.0, 3.0] }\n')
    refused = run("run", path, "--out", tmp_path / "runs")
    assert refused.code == 2
    assert "class_weights needs 2 positive numbers, got [1.0, 2.0, 3.0]" in refused.err
    assert refused.err.count("\n") == 1
