"""CPU time from slide file to prediction, whole and routed.

Both ways go through what `marble predict` goes through, in one process: they take turns on the same slides, and CPU
time is compared, so that others on the machine have no say in it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from marble.prediction import Predictor
from marble.preparing import bags_of
from marble.training.run_folder import RunFolder

BUDGET = 0.25
REPEATS = 3  # turns of each slide


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
