"""`marble bench routing`: accuracy against the share of fine tiles that are embedded, and the time that saves.

    marble bench routing --out OUT                  made-up cohorts, and drawn slides from the file to the prediction
    marble bench routing --data DIR --out OUT       also cohorts composed of real tissue, and those bags as they are

For several seeds MARBLE is trained by the small recipe, a router is learned from its training slides, and the test
slides are predicted with fewer and fewer fine tiles (`routing_curves`). DIR is what `bench learning` takes. Runs and
curves are kept below OUT, and what was stopped goes on there; OUT also gets `routing.md` and `routing.svg`. How the
head learns was chosen on the seeds `DEVELOPMENT` (`choose_teacher`), which are never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from marble.benchmarks.measure import machine
from marble.benchmarks.routing_cohorts import COMPOSED, REAL, SIZES, trained
from marble.benchmarks.routing_curves import curve, points
from marble.benchmarks.routing_slides import ENCODER, SLIDES, drawn_slides
from marble.benchmarks.routing_tables import markdown, write_tables
from marble.files import publish_json
from marble.models.routing import TEACHERS

SEEDS = 5
DEVELOPMENT = (100, 101)
MADE_UP = ("focal",)
QUICK_SIZES, QUICK_SLIDES = (16, 8, 16), 15


def run(
    json_path: str | Path | None = None,
    quick: bool = False,
    data: str | Path | None = None,
    out: str | Path | None = None,
    cohorts: Sequence[str] | None = None,
    slides: bool = True,
) -> dict[str, Any]:
    """Measure, print, and write JSON to `json_path` if given; `quick` is one seed, few slides and a small encoder.

    Args:
        json_path: file of the figures.
        quick: to see that it runs.
        data: bags and labels.csv, for the cohorts of real tissue.
        out: where runs and curves are kept; a temporary folder if not given.
        cohorts: of `routing_cohorts`; by default all that there is data for.
        slides: also go from drawn slides to predictions.
    """
    if out is None:
        with TemporaryDirectory(prefix="marble-routing-") as scratch:
            return run(json_path, quick, data, scratch, cohorts, slides)
    root = Path(out)
    names = [*MADE_UP, *([] if data is None else [*COMPOSED, REAL])] if cohorts is None else list(cohorts)
    seeds = range(1 if quick else SEEDS)
    tables = [_table(root, name, seeds, data, QUICK_SIZES if quick else SIZES) for name in names]
    if slides:
        few = (QUICK_SLIDES, "colour") if quick else (SLIDES, ENCODER)
        tables.append(drawn_slides(root, seeds, *few))
    write_tables(tables, root)
    result = {"benchmark": "routing", "machine": machine(), "tables": tables}
    _print(result)
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
    curves = []
    for seed in seeds:
        one = trained(root, name, seed, data, sizes)
        curves.append(curve(one, seed, root / "curves" / f"{name}-{seed}.json"))
    told = f"{Path(str(data)).name}, as it is" if name == REAL else name
    slides = sum(len(one.positive) for one in curves)
    return {"cohort": told, "seeds": list(seeds), "slides": slides, "points": points(curves)}


def _print(result: dict[str, Any]) -> None:
    console = Console()
    console.print(markdown(result["tables"]), markup=False, highlight=False)
    for table in result["tables"]:
        if "time" in table:
            time = table["time"]
            console.print(
                f"slide to prediction with {table['encoder']}, budget {time['budget']:g}: {time['ratio']:.2f} times "
                f"the CPU time of the whole path ({time['tiles']['routed']:.0f} of {time['tiles']['whole']:.0f} tiles)"
            )
