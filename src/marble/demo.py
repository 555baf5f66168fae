"""The whole way on made-up slides: slides -> bags -> runs -> report, in a few minutes, nothing downloaded.

It shows that everything works; it compares nothing. MARBLE's learning rate was set while looking at the scores on these
very slides (the recipe's own is too small for so few steps), so its row is not an unbiased estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from marble import files
from marble.compute import Done, Executor, Inline, Processes
from marble.errors import MarbleError
from marble.experiment import Experiment
from marble.extract import ExtractSpec, extract_many
from marble.reports import write_report
from marble.slides.lattice import PyramidSpec
from marble.synthetic.slides import Planted, write_slide
from marble.training.protocol import run_all

PATIENTS = 32
SIZE_PX = (2560, 2048)
LESION_PX = 640

EXPERIMENT = """\
name = "demo"
cohort = "cohort.csv"
task = "classification"
bags = { store = "bags", magnifications = [5, 20], encoder = "lite0" }
split = { scheme = "kfold", folds = 4, repeats = 1 }
train = { recipe = "common", epochs = 10, warmup = 1, lr = 5e-5, patience = 6, orders = 4 }
models = [
  { name = "marble" },
  { name = "marble", label = "marble, 20x only", levels = 1 },
  { name = "abmil", recipe = "authors" },
]
"""


def run_demo(out: str | Path, workers: int = 2, report: Callable[[Path, Path], object] = write_report) -> Iterator[str]:
    """Do it all, saying what is done; what is already there and whole is kept. `report` reports on the runs."""
    root = Path(out)
    executor: Executor = Inline() if workers == 1 else Processes(workers)
    yield f"1/4  drawing {PATIENTS} slides, half of them with a planted lesion"
    slides = _slides(root, executor)
    spec = ExtractSpec(pyramid=PyramidSpec(magnifications=(5, 20)), encoders=("lite0",))
    yield "2/4  tiling at 5x and 20x on one lattice, embedding with EfficientNet-Lite0"
    summary = extract_many(slides, spec, root / "bags", executor=executor)
    if not summary.ok:
        raise MarbleError(f"extraction failed: {[o.reason for o in summary.outcomes if o.reason]}")
    path = files.publish(root / "demo.toml", EXPERIMENT)
    planned = Experiment.load(path).plan(root / "runs")
    yield f"3/4  training: {len(planned)} runs (3 models, 4 folds by patient)"
    outcomes = run_all(planned, executor)
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        raise MarbleError(f"{len(failed)} runs failed: {failed[0].reason}", where=failed[0].planned.folder)
    yield "4/4  results by fold (a demonstration: the learning rate was set on these slides, so compare nothing)"
    report(root / "runs" / "demo", root / "report")
    best = next(outcome.planned.folder for outcome in outcomes if outcome.planned.about["model"] == "marble")
    yield f"ask the model about a slide:  marble predict '{best}' {slides[0]}"


def _slides(root: Path, executor: Executor) -> list[Path]:
    """Draw the slides that are not there yet, and write the table of labels."""
    numbers = range(PATIENTS)
    paths = [root / "slides" / f"P{number:03d}-S0.tiff" for number in numbers]
    rows = [f"P{number:03d},P{number:03d}-S0,{'tumour' if number % 2 else 'benign'}" for number in numbers]
    files.publish(root / "cohort.csv", "\n".join(["case_id,slide_id,label", *rows]) + "\n")
    missing = [(str(path), number) for number, path in zip(numbers, paths, strict=True) if not path.exists()]
    for ended in executor.map(_draw, missing):
        if not isinstance(ended, Done):
            raise MarbleError(f"could not draw a slide: {ended.reason}", where=ended.item[0])
    return paths


def _draw(item: tuple[str, int]) -> None:
    path, number = item
    rng = Random(number)  # noqa: S311  draws pictures
    width, height = SIZE_PX
    x = int(width * 0.2) + rng.randrange(int(width * 0.35))
    y = int(height * 0.25) + rng.randrange(int(height * 0.25))
    lesion = Planted("lesion", (x, y, LESION_PX, LESION_PX))
    write_slide(path, SIZE_PX, mpp=0.5, seed=number, planted=[lesion] if number % 2 else [])
