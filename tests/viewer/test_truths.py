"""One folder of runs may hold experiments that ask for different things of the same slides."""

from __future__ import annotations

from pathlib import Path

from marble.files import publish_json
from marble.models import Recipe
from marble.training.job import CaseSpec, FitJob, TargetSpec, TaskSpec
from marble.training.run import HeldOut, PlannedRun, execute
from marble.viewer.app import create_app
from marble.viewer.registry import build_registry, key_of
from tests.viewer.client import get
from tests.viewer.world import World, make_survival_world


def test_a_slide_shows_what_every_experiment_knows_of_it(tmp_path: Path) -> None:
    """The truth of one experiment stood for all, so a column mixed classes with times and its filter lost slides."""
    world = make_survival_world(tmp_path)
    _run_of_classes(world)
    registry = build_registry(tmp_path)
    slide = registry.slides[key_of("slide", "P0009-S0")]
    outcome, grade = sorted(slide.truths, key=lambda truth: truth.is_class)
    assert (outcome.name, grade.name, grade.text) == ("outcome", "label", "G2")
    assert outcome.text in slide.truth
    assert grade.text in slide.truth
    app = create_app(registry)
    page = get(app, "/").body.decode()
    assert 'data-labels="G2"' in page
    assert "<option>G2</option>" in page
    assert f"{outcome.text}</option>" not in page
    assert ">Label</button>" in page
    here = get(app, f"/slide/{slide.key}").body.decode()
    assert "label: G2" in here
    assert f"outcome: {outcome.text}" in here


def _run_of_classes(world: World) -> None:
    """A second experiment on the same bags, which held out the same slides."""
    cases = [CaseSpec(case_id=one.split("-")[0], slides=(one,), target=TargetSpec(label=f"G{1 + n % 2}"))
             for n, one in enumerate(sorted(bag.slide_id for bag in world.store))]  # fmt: skip
    home = world.runs / "grade"
    publish_json(home / "held-out.json", HeldOut(cases=tuple(cases[8:])).model_dump(mode="json"))
    job = FitJob(
        model="mean", dim=32, task=TaskSpec(name="classification", classes=("G1", "G2")),
        recipe=Recipe(epochs=1, warmup=0, lr=1e-3), store=str(world.store.root), bags_sha256="0" * 64,
        train=tuple(cases[:4]), val=tuple(cases[4:8]), split="s",
    )  # fmt: skip
    about = {"experiment": "grade", "model": "mean", "variant": "", "repeat": 0, "scheme": "holdout", "paper": {},
             "scored_by": "patient", "slides": {"in": 12, "used": 12, "excluded": {}}}  # fmt: skip
    execute(PlannedRun(folder=str(home / "mean" / "0"), job=job, test=str(home / "held-out.json"), about=about))
