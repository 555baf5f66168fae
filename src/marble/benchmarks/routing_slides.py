"""From slide file to prediction, whole and routed: what is lost, and the time it takes.

Slides are drawn as for the demo (`synthetic.two_scales`) and embedded by the default encoder. Both ways go through what
`marble predict` goes through, in one process: they take turns on the same slides, and CPU time is compared, so that
others on the machine have no say in it. The demo's slides are small; time is taken on larger ones, and on a real slide
if one is given.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from marble import files
from marble.bags.store import BagStore
from marble.benchmarks.learning import train
from marble.benchmarks.routing_cohorts import Trained
from marble.benchmarks.routing_curves import Curve, curve, points
from marble.compute import Inline
from marble.experiment import Experiment
from marble.extract import ExtractSpec, extract_many
from marble.prediction import Predictor
from marble.preparing import bags_of
from marble.slides.lattice import PyramidSpec
from marble.synthetic.two_scales import write_two_scale_slide
from marble.training.results import read_cases
from marble.training.routing import calibrate
from marble.training.run_folder import RunFolder

DRAWN = "drawn slides"
ENCODER = "lite0"
SLIDES = 50
SEED_STEP = 1000  # slides of different seeds have nothing in common
BUDGET = 0.25
FOLDS = 5
#: slides that are timed, how often each, and how many rows and columns of regions they have
TIMED, REPEATS, REGIONS = 3, 3, (4, 6)
EXPERIMENT = """\
name = "drawn"
cohort = "cohort.csv"
task = "classification"
bags = { store = "bags" }
split = { scheme = "kfold", folds = %d, repeats = 1 }
train = { recipe = "small" }
models = [{ name = "marble" }]
baselines = []
"""


def drawn_slides(
    root: Path,
    seeds: range,
    slides: int = SLIDES,
    encoder: str = ENCODER,
    regions: tuple[int, int] = REGIONS,
    real: Path | None = None,
) -> dict[str, Any]:
    """Loss of AUC on the test slides of one fold a seed, and the CPU time of one prediction against the other.

    Args:
        root: where slides, bags, runs and curves are kept.
        seeds: each has slides of its own.
        slides: of each seed.
        encoder: of both levels.
        regions: rows and columns of the slides that are timed.
        real: another slide to time.
    """
    curves: list[Curve] = []
    timed: list[dict[str, Any]] = []
    for seed in seeds:
        home = root / "drawn" / str(seed)
        store = _bags(home, seed, slides, encoder)
        one = _trained(home, store)
        curves.append(curve(one, seed, home / "curve.json"))
        if seed == seeds[0]:
            calibrate(one.run, one.store, tolerance=0.01, budgets=(BUDGET,))
            timed.append({"slides": f"{TIMED} drawn slides"} | time_predictions(one.run, _large(home, regions)))
            if real is not None:
                timed.append({"slides": real.name} | time_predictions(one.run, [real]))
    return {
        "cohort": DRAWN,
        "encoder": encoder,
        "repeats": "seeds",
        "seeds": list(seeds),
        "slides": sum(len(one.positive) for one in curves),
        "points": points(curves),
        "time": timed,
    }


def _bags(home: Path, seed: int, slides: int, encoder: str) -> BagStore:
    names = [f"P{number:03d}" for number in range(slides)]
    paths = {f"{name}-S0": home / "slides" / f"{name}-S0.tiff" for name in names}
    for number, path in enumerate(paths.values()):
        if not path.exists():
            write_two_scale_slide(path, tumour=bool(number % 2), seed=SEED_STEP * seed + number)
    rows = [f"{name},{name}-S0,{'tumour' if number % 2 else 'benign'}" for number, name in enumerate(names)]
    files.publish(home / "cohort.csv", "\n".join(["case_id,slide_id,label", *rows]) + "\n")
    spec = ExtractSpec(pyramid=PyramidSpec(magnifications=(5, 20)), encoders=(encoder,))
    made = extract_many(list(paths.values()), spec, home / "bags", executor=Inline())
    return BagStore(made.store)


def _large(home: Path, regions: tuple[int, int]) -> list[Path]:
    """Slides to time, of the same tissue and more of it."""
    paths = [home / "timed" / f"T{number}.tiff" for number in range(TIMED)]
    for number, path in enumerate(paths):
        if not path.exists():
            write_two_scale_slide(path, tumour=bool(number % 2), seed=number, regions=regions)
    return paths


def _trained(home: Path, store: BagStore) -> Trained:
    path = files.publish(home / "drawn.toml", EXPERIMENT % FOLDS)
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


def time_predictions(run: RunFolder, slides: list[Path]) -> dict[str, Any]:
    """CPU seconds per slide, median over slides and turns; the first turn warms up and is not counted.

    The ratio is the median over slides and turns, its range that of the slides, each by the median of its turns.
    """
    ways = {"whole": Predictor(run), "routed": Predictor(run, budget=BUDGET)}
    seconds: dict[str, list[list[float]]] = {way: [[] for _ in slides] for way in ways}  # [slide][turn]
    tiles = dict.fromkeys(ways, 0)
    for turn in range(1 + REPEATS):
        for place, slide in enumerate(slides):
            coarse = 0  # tiles of the whole slide: all of them are embedded either way, also where none below is
            for way, predictor in ways.items():
                began = time.process_time()
                ((_, bag),) = bags_of([slide], run, routing=predictor.routing)
                if isinstance(bag, Exception):
                    raise bag
                predictor.answer(bag)
                if turn > 0:
                    seconds[way][place].append(time.process_time() - began)
                    coarse = max(coarse, len(bag.levels[0]))  # the whole way goes first
                    tiles[way] += coarse + len(bag.finest)
    ratios = np.array(seconds["routed"]) / np.array(seconds["whole"])  # (slides, turns)
    of_slide = np.median(ratios, axis=1)
    return {
        "budget": BUDGET,
        "turns": REPEATS,
        "cpu_seconds": {way: float(np.median(found)) for way, found in seconds.items()},
        "ratio": float(np.median(ratios)),
        "range": [float(of_slide.min()), float(of_slide.max())],
        "tiles": {way: count / (REPEATS * len(slides)) for way, count in tiles.items()},
    }
