"""`marble bench routing`: accuracy against the share of fine tiles that are embedded, and the time that saves.

    marble bench routing --out OUT                  made-up cohorts, and drawn slides from the file to the prediction
    marble bench routing --data DIR --out OUT       also cohorts composed of real tissue, and those bags as they are
    ... --data OTHER                                also the bags of OTHER as they are
    ... --slide FILE                                also the time of a prediction from this slide

For several seeds MARBLE is trained by the small recipe, a router is learned from its training slides, and the test
slides are predicted with fewer and fewer fine tiles (`routing_curves`). DIR is what `bench learning` takes. Runs and
curves are kept below OUT, and what was stopped goes on there; OUT also gets `routing.md` and `routing.svg`. How the
head learns, and how the focal slides are drawn, was chosen on the seeds `DEVELOPMENT`, which are never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from marble.benchmarks.measure import machine
from marble.benchmarks.routing_cohorts import COMPOSED, FOLDS, REAL, SIZES, trained
from marble.benchmarks.routing_curves import curve, points
from marble.benchmarks.routing_slides import DEMO, ENCODER, FOCAL, drawn_slides
from marble.benchmarks.routing_tables import markdown, write_tables
from marble.files import publish_json
from marble.models.routing import TEACHERS

SEEDS = 5
COMPOSED_SEEDS = 3  # a run takes a minute
DEVELOPMENT = (100, 101)
MADE_UP = ("focal",)
QUICK_SIZES, QUICK_DEMO = (16, 8, 16), replace(DEMO, slides=15, timed_regions=(2, 3))
QUICK_FOCAL = replace(FOCAL, slides=12, parts=(6, 2, 4))


def run(
    json_path: str | Path | None = None,
    quick: bool = False,
    data: Sequence[str | Path] = (),
    out: str | Path | None = None,
    slide: Path | None = None,
) -> dict[str, Any]:
    """Measure, print, and write JSON to `json_path` if given; `quick` is one seed, few slides and a small encoder.

    Args:
        json_path: file of the figures.
        quick: to see that it runs.
        data: folders of bags and labels.csv; of the first one's tissue cohorts are composed.
        out: where runs and curves are kept; a temporary folder if not given.
        slide: a real slide, to time predictions from it too.
    """
    if out is None:
        with TemporaryDirectory(prefix="marble-routing-") as scratch:
            return run(json_path, quick, data, scratch, slide)
    root = Path(out)
    sizes, most = (QUICK_SIZES, 1) if quick else (SIZES, SEEDS)
    demo, focal, encoder = (QUICK_DEMO, QUICK_FOCAL, "colour") if quick else (DEMO, FOCAL, ENCODER)
    tables = [
        drawn_slides(root, focal, range(most), encoder),
        drawn_slides(root, demo, range(most), encoder, real=slide),
    ]
    tables += [_table(root, name, range(most), None, sizes) for name in MADE_UP]
    if data:
        tables += [_table(root, name, range(min(most, COMPOSED_SEEDS)), data[0], sizes) for name in COMPOSED]
    tables += [_table(root, REAL, range(min(most, FOLDS)), one, sizes) for one in data]
    write_tables(tables, root)
    result = {"benchmark": "routing", "machine": machine(), "tables": tables}
    Console().print(markdown(tables), markup=False, highlight=False)
    if json_path is not None:
        publish_json(json_path, result)
    return result


def choose_teacher(
    root: Path, data: str | Path, cohorts: Sequence[str] = (*MADE_UP, *COMPOSED), seeds: Sequence[int] = DEVELOPMENT
) -> list[dict[str, Any]]:
    """Test AUC at every budget for each way a router may learn, on development seeds: what the default rests on."""
    found = []
    for cohort in cohorts:
        for teacher in TEACHERS:
            curves = []
            for seed in seeds:
                cache = root / "curves" / f"{cohort}-{seed}-{teacher}.json"
                curves.append(curve(trained(root, cohort, seed, data, SIZES), seed, cache, teacher))
            mine = [point for point in points(curves) if point["choice"] == "routed"]
            found.append({"cohort": cohort, "teacher": teacher, "auc": {f"{p['budget']:g}": p["auc"] for p in mine}})
    return found


def _table(root: Path, name: str, seeds: range, data: str | Path | None, sizes: tuple[int, int, int]) -> dict[str, Any]:
    told = f"{Path(str(data)).name}, as it is" if name == REAL else name
    kept = f"{REAL}-{Path(str(data)).name}" if name == REAL else name
    curves = []
    for seed in seeds:
        one = trained(root, name, seed, data, sizes)
        curves.append(curve(one, seed, root / "curves" / f"{kept}-{seed}.json"))
    slides = sum(len(one.positive) for one in curves)
    return {
        "cohort": told,
        "repeats": "folds" if name == REAL else "seeds",
        "seeds": list(seeds),
        "slides": slides,
        "points": points(curves),
    }
