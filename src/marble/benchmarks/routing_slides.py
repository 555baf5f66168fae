"""Drawn slides, from the file to the prediction: what is lost with fewer fine tiles, and the time that is saved.

drawn slides           those of the demo (`synthetic.two_scales`): every region of one kind holds evidence
drawn slides, focal    two of twelve regions matter, and are seen from afar (`synthetic.focal_slides`)

Slides are embedded by the default encoder. The demo's slides are small, so time is taken on larger ones; of the focal
cohort on slides that are tested; and on a real slide if one is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble import files
from marble.bags.store import BagStore
from marble.benchmarks.learning import train
from marble.benchmarks.routing_cohorts import Trained
from marble.benchmarks.routing_curves import Curve, curve, points
from marble.benchmarks.routing_time import BUDGET, time_predictions
from marble.cohorts.split_files import write_splits
from marble.cohorts.splits import Split
from marble.compute import Inline
from marble.experiment import Experiment
from marble.extract import ExtractSpec, extract_many
from marble.slides.lattice import PyramidSpec
from marble.synthetic.focal_slides import write_focal_slide
from marble.synthetic.two_scales import write_two_scale_slide
from marble.training.results import read_cases
from marble.training.routing import calibrate
from marble.training.run_folder import RunFolder

ENCODER = "lite0"
SEED_STEP = 1000  # slides of different seeds have nothing in common
TIMED = 3  # slides
EXPERIMENT = """\
name = "drawn"
cohort = "cohort.csv"
task = "classification"
bags = { store = "bags" }
split = %s
train = { recipe = "small" }
models = [{ name = "marble" }]
baselines = []
"""


@dataclass(frozen=True)
class DrawnCohort:
    """A kind of drawn slides: how they look, how many there are, and which are tested.

    Args:
        name: in tables.
        folder: below OUT.
        draw: writes the slide of a path, a class and a seed.
        slides: of each seed; every second one is of a tumour.
        parts: how many of them to train on, to validate and to test; if not given, the first of five folds.
        timed_regions: rows and columns of the larger slides that are timed; if not given, test slides are timed.
    """

    name: str
    folder: str
    draw: Callable[[Path, bool, int], object]
    slides: int
    parts: tuple[int, int, int] | None = None
    timed_regions: tuple[int, int] | None = None


DEMO = DrawnCohort("drawn slides", "drawn", write_two_scale_slide, slides=50, timed_regions=(4, 6))
FOCAL = DrawnCohort("drawn slides, focal", "drawn-focal", write_focal_slide, slides=32, parts=(20, 4, 8))


def drawn_slides(
    root: Path, cohort: DrawnCohort, seeds: range, encoder: str = ENCODER, real: Path | None = None
) -> dict[str, Any]:
    """Loss of AUC on the test slides of every seed, and the CPU time of one prediction against the other.

    Args:
        root: where slides, bags, runs and curves are kept.
        cohort: what is drawn.
        seeds: each has slides of its own.
        encoder: of both levels.
        real: another slide to time.
    """
    curves: list[Curve] = []
    timed: list[dict[str, Any]] = []
    for seed in seeds:
        home = root / cohort.folder / str(seed)
        one = _trained(home, cohort, _bags(home, cohort, seed, encoder))
        curves.append(curve(one, seed, home / "curve.json"))
        if seed == seeds[0]:
            calibrate(one.run, one.store, tolerance=0.01, budgets=(BUDGET,))
            mine = _to_time(home, cohort, one)
            timed.append({"slides": f"{len(mine)} {cohort.name}"} | time_predictions(one.run, mine))
            if real is not None:
                timed.append({"slides": real.name} | time_predictions(one.run, [real]))
    return {
        "cohort": cohort.name,
        "encoder": encoder,
        "repeats": "seeds",
        "seeds": list(seeds),
        "slides": sum(len(one.positive) for one in curves),
        "points": points(curves),
        "time": timed,
    }


def _bags(home: Path, cohort: DrawnCohort, seed: int, encoder: str) -> BagStore:
    names = _names(cohort)
    paths = [_slide(home, f"{name}-S0") for name in names]
    for number, path in enumerate(paths):
        if not path.exists():
            cohort.draw(path, bool(number % 2), SEED_STEP * seed + number)
    rows = [f"{name},{name}-S0,{'tumour' if number % 2 else 'benign'}" for number, name in enumerate(names)]
    files.publish(home / "cohort.csv", "\n".join(["case_id,slide_id,label", *rows]) + "\n")
    spec = ExtractSpec(pyramid=PyramidSpec(magnifications=(5, 20)), encoders=(encoder,))
    made = extract_many(paths, spec, home / "bags", executor=Inline())
    return BagStore(made.store)


def _names(cohort: DrawnCohort) -> list[str]:
    return [f"P{number:03d}" for number in range(cohort.slides)]


def _slide(home: Path, slide_id: str) -> Path:
    return home / "slides" / f"{slide_id}.tiff"


def _to_time(home: Path, cohort: DrawnCohort, one: Trained) -> list[Path]:
    """Test slides, or slides of the same tissue and more of it."""
    if cohort.timed_regions is None:
        return [_slide(home, slide_id) for slide_id in one.slides[:TIMED]]
    paths = [home / "timed" / f"T{number}.tiff" for number in range(TIMED)]
    for number, path in enumerate(paths):
        if not path.exists():
            write_two_scale_slide(path, tumour=bool(number % 2), seed=number, regions=cohort.timed_regions)
    return paths


def _trained(home: Path, cohort: DrawnCohort, store: BagStore) -> Trained:
    path = files.publish(home / "drawn.toml", EXPERIMENT % _split(home, cohort))
    planned = Experiment.load(path).plan(home / "runs")[0]
    train([planned], None)
    run = RunFolder.open(planned.folder)
    tested = [case for case in read_cases(run.folder, run.task) if case.part == "test"]
    slides = tuple(case.slide_ids[0] for case in tested)
    return Trained(
        run,
        store,
        slides,
        tuple(case.target == planned.job.task.classes[1] for case in tested),
        tuple(case.case_id for case in tested),
    )


def _split(home: Path, cohort: DrawnCohort) -> str:
    """The experiment's split; slides were drawn independently, so parts are dealt in the order of their numbers."""
    if cohort.parts is None:
        return '{ scheme = "kfold", folds = 5, repeats = 1 }'
    names = _names(cohort)
    first, second = cohort.parts[0], sum(cohort.parts[:2])
    split = Split(
        train=tuple(names[:first]), val=tuple(names[first:second]), test=tuple(names[second:]), scheme="drawn", repeat=0
    )
    write_splits([split], home / "splits")
    return '{ scheme = "files", files = "splits/drawn" }'
