"""A small world to look at: planted slides, their bags, and runs trained on them for a moment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble.bags.store import BagStore
from marble.extract import ExtractSpec, extract_slide
from marble.extract.slide import store_for
from marble.files import publish_json
from marble.models import Recipe
from marble.slides.lattice import PyramidSpec
from marble.synthetic.cohort import write_cohort
from marble.synthetic.slides import Planted, write_slide
from marble.training.job import CaseSpec, FitJob, TargetSpec, TaskSpec
from marble.training.run import HeldOut, PlannedRun, execute

SIZE = (1536, 1024)
LESION = Planted("lesion", (620, 420, 420, 420))
SPEC = ExtractSpec(pyramid=PyramidSpec(magnifications=(5, 20), tile_px=64), encoders=("colour",))


@dataclass(frozen=True)
class World:
    """Where everything is."""

    root: Path
    slides: Path
    runs: Path
    store: BagStore

    def run(self, name: str) -> Path:
        return self.runs / name / "0"


def make_world(root: Path, *, slides: int = 6, models: tuple[str, ...] = ("abmil", "marble", "max")) -> World:
    """Slides with and without a lesion, bags of colours, and one run per model."""
    ids = []
    for number in range(slides):
        path = root / "slides" / f"S{number}.tiff"
        write_slide(path, SIZE, seed=number, planted=[LESION] if number % 2 else [])
        record = extract_slide(path, SPEC, root / "bags")
        assert record.status == "ok", record.reason
        ids.append(path.stem)
    store = store_for(root / "bags", SPEC)
    cases = [CaseSpec(case_id=f"P{n}", slides=(one,), target=TargetSpec(label="lesion" if n % 2 else "none"))
             for n, one in enumerate(ids)]  # fmt: skip
    publish_json(root / "runs" / "held-out.json", HeldOut(cases=tuple(cases[4:])).model_dump(mode="json"))
    for model in models:
        job = FitJob(
            model=model, options={"headdim": 16, "d_state": 16} if model == "marble" else {}, dim=24,
            task=TaskSpec(name="classification", classes=("none", "lesion")),
            recipe=Recipe(epochs=2, warmup=0, lr=1e-3), store=str(store.root), bags_sha256="0" * 64,
            train=tuple(cases[:2]), val=tuple(cases[2:4]), split="s", orders=2,
        )  # fmt: skip
        about = _about(model, slides)
        execute(PlannedRun(folder=str(root / "runs" / model / "0"), job=job, test=str(root / "runs" / "held-out.json"),
                           about=about))  # fmt: skip
    return World(root, root / "slides", root / "runs", store)


def make_repeats(world: World) -> Path:
    """Two repeats per task on a world's six slides, which both learn from S0 and both hold out S4 and S5."""
    lesions = [number % 2 for number in range(6)]
    tasks = {
        "calls": (TaskSpec(name="classification", classes=("none", "lesion")),
                  [TargetSpec(label="lesion" if one else "none") for one in lesions]),
        "sizes": (TaskSpec(name="regression"), [TargetSpec(number=10.0 * one + n) for n, one in enumerate(lesions)]),
        "times": (TaskSpec(name="survival"), [TargetSpec(time=20.0 - 3 * n, event=n != 4) for n in range(6)]),
    }  # fmt: skip
    root = world.root / "repeats"
    for name, (task, targets) in tasks.items():
        cases = [CaseSpec(case_id=f"P{n}", slides=(f"S{n}",), target=target) for n, target in enumerate(targets)]
        held_out = root / name / "held-out.json"
        publish_json(held_out, HeldOut(cases=tuple(cases[4:])).model_dump(mode="json"))
        for repeat, (train, val) in enumerate([((0, 1), (2, 3)), ((0, 3), (1, 2))]):
            job = FitJob(
                model="mean", dim=24, task=task, recipe=Recipe(epochs=8, warmup=0, lr=1e-2),
                store=str(world.store.root), bags_sha256="0" * 64, split="s", seed=repeat,
                train=tuple(cases[n] for n in train), val=tuple(cases[n] for n in val),
            )  # fmt: skip
            about = {**_about("mean", 6), "experiment": name, "repeat": repeat,
                     "unit": {"calls": "", "sizes": "mm", "times": "months"}[name]}  # fmt: skip
            execute(PlannedRun(folder=str(root / name / str(repeat)), job=job, test=str(held_out), about=about))
    return root


def make_survival_world(root: Path) -> World:
    """Made-up bags that do not know their place on any slide, and a survival run."""
    table, store = write_cohort(root, "survival", patients=12, two_slides=0.0)
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    cases = [CaseSpec(case_id=case, slides=(slide,), target=TargetSpec(time=float(time), event=n % 3 > 0))
             for n, (case, slide, time, _) in enumerate(rows)]  # fmt: skip
    held_out = root / "runs" / "held-out.json"
    publish_json(held_out, HeldOut(cases=tuple(cases[8:])).model_dump(mode="json"))
    job = FitJob(
        model="mean", dim=32, task=TaskSpec(name="survival"), recipe=Recipe(epochs=1, warmup=0, lr=1e-3),
        store=str(store.root), bags_sha256="0" * 64, train=tuple(cases[:4]), val=tuple(cases[4:8]), split="s",
    )  # fmt: skip
    about = _about("mean", 12)
    execute(PlannedRun(folder=str(root / "runs" / "mean" / "0"), job=job, test=str(held_out), about=about))
    return World(root, root, root / "runs", store)


def _about(model: str, slides: int) -> dict[str, Any]:
    """What an experiment writes into its runs."""
    return {"experiment": "tiny", "model": model, "variant": "", "repeat": 0, "scheme": "holdout", "paper": {},
            "scored_by": "patient", "slides": {"in": slides, "used": slides, "excluded": {}}}  # fmt: skip
