"""The whole way on drawn slides whose class shows only where two scales are read together (`synthetic.two_scales`).

Slides -> bags -> runs -> report -> heatmap, in a few minutes, nothing downloaded. Models are trained as small cohorts
are by default. What is drawn how was settled on slides of other seeds (`DEVELOPMENT_SEED`), so what the demo shows was
not tuned on what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from marble import files
from marble.bags.store import BagStore
from marble.compute import Done, Executor, Inline, Processes
from marble.errors import InputError, MarbleError
from marble.experiment import Experiment
from marble.extract import ExtractSpec, extract_many
from marble.heatmaps.write import write_heatmaps
from marble.prediction import Predictor
from marble.reports import write_report
from marble.slides.lattice import PyramidSpec
from marble.synthetic.two_scales import write_two_scale_slide
from marble.training.protocol import RunOutcome, run_all

PATIENTS = 96
SEED_STEP = 1000  # slides of different seeds of the demo have nothing in common
DEVELOPMENT_SEED = 100
DRAWN = "demo.json"  # which slides are in the folder; there before the first of them

EXPERIMENT = """\
name = "demo"
cohort = "cohort.csv"
task = "classification"
bags = { store = "bags", magnifications = [5, 20], encoder = "lite0" }
split = { scheme = "kfold", folds = 5, repeats = 1 }
train = { recipe = "small" }
models = [
  { name = "marble", label = "marble" },
  { name = "marble", label = "marble, 20x only", levels = 1 },
  { name = "abmil", label = "abmil, 20x" },
]
"""
HOW_TO_READ = """\
The same speckled cells are in both classes; only the kind of region around them tells tumour from benign. At 20x alone
the region is out of sight, at 5x alone the cells are: a model that reads one scale can only guess (AUC 0.5), one that
reads each cell together with its region can know."""


def run_demo(
    out: str | Path,
    workers: int = 2,
    report: Callable[[Path, Path], object] = write_report,
    seed: int = 0,
) -> Iterator[str]:
    """Do it all, saying what is done; what is already there and whole is kept. `report` reports on the runs."""
    root = Path(out)
    _claim(root, seed)
    executor: Executor = Inline() if workers == 1 else Processes(workers)
    yield f"1/5  drawing {PATIENTS} slides: glands, nests, and speckled cells among the ones or the others"
    slides = _slides(root, seed, executor)
    spec = ExtractSpec(pyramid=PyramidSpec(magnifications=(5, 20)), encoders=("lite0",))
    yield "2/5  tiling at 5x and 20x on one lattice, embedding with EfficientNet-Lite0"
    summary = extract_many(slides, spec, root / "bags", executor=executor)
    if not summary.ok:
        raise MarbleError(f"extraction failed: {[o.reason for o in summary.outcomes if o.reason]}")
    path = files.publish(root / "demo.toml", EXPERIMENT)
    planned = Experiment.load(path).plan(root / "runs")
    yield f"3/5  training: {len(planned)} runs, every model on 5 folds by patient"
    outcomes = run_all(planned, executor)
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        raise MarbleError(f"{len(failed)} runs failed: {failed[0].reason}", where=failed[0].planned.folder)
    yield "4/5  results"
    report(root / "runs" / "demo", root / "report")
    yield HOW_TO_READ
    yield "5/5  why: where the model looked on a slide it had never seen"
    yield from _heatmap(root, outcomes, BagStore(summary.store))
    yield f"look around:  marble view {root / 'runs'} --store {root / 'bags'} --slides {root / 'slides'}"


def _heatmap(root: Path, outcomes: list[RunOutcome], store: BagStore) -> Iterator[str]:
    """Draw the first tumour slide that the first fold was tested on."""
    run = next(o.planned.folder for o in outcomes if o.planned.about["model"] == "marble")
    predictor = Predictor(run)
    tested = predictor.run.record["parts"]["test"]
    shown = next(slide for slide in sorted(tested) if int(slide[1:4]) % 2)  # odd numbers are tumours
    written = write_heatmaps(predictor, store.load(shown), root / "slides" / f"{shown}.tiff", root / "heatmaps")
    yield written.sentence
    yield from (f"heatmap: {path}" for path in written.files if path.suffix == ".png")
    yield f"ask the model about a slide:  marble predict '{run}' {root / 'slides' / f'{shown}.tiff'}"


def _claim(root: Path, seed: int) -> None:
    """Say in the folder which slides it is for; one with others is refused, since what is there is kept."""
    drawn, asked = root / DRAWN, {"seed": seed, "patients": PATIENTS}
    found = files.read_json(drawn) if drawn.exists() else None
    if found == asked:
        return
    if found is not None or any((root / name).exists() for name in ("slides", "bags", "runs")):
        what = f"this folder does not hold the demo of seed {seed} with {PATIENTS} slides"
        raise InputError(what, where=root, hint="Give another --out, or remove this folder")
    files.publish_json(drawn, asked)


def _slides(root: Path, seed: int, executor: Executor) -> list[Path]:
    """Draw the slides that are not there yet, and write the table of labels."""
    numbers = range(PATIENTS)
    paths = [root / "slides" / f"P{number:03d}-S0.tiff" for number in numbers]
    rows = [f"P{number:03d},P{number:03d}-S0,{'tumour' if number % 2 else 'benign'}" for number in numbers]
    files.publish(root / "cohort.csv", "\n".join(["case_id,slide_id,label", *rows]) + "\n")
    missing = [
        (str(path), number, SEED_STEP * seed + number)
        for number, path in zip(numbers, paths, strict=True)
        if not path.exists()
    ]
    for ended in executor.map(_draw, missing):
        if not isinstance(ended, Done):
            raise MarbleError(f"could not draw a slide: {ended.reason}", where=ended.item[0])
    return paths


def _draw(item: tuple[str, int, int]) -> None:
    path, number, seed = item
    write_two_scale_slide(path, tumour=bool(number % 2), seed=seed)
