"""Lattices, predictions and maps for the browser, as JSON bytes. Runs are opened once; one model thinks at a time."""

from __future__ import annotations

import json
from threading import Lock
from typing import Any

import numpy as np
from cachetools import LRUCache

from marble.attribution import Explanation, explain
from marble.bags.bag import Bag
from marble.errors import BagError, InputError
from marble.heatmaps.geojson import tiles_geojson
from marble.heatmaps.words import meaning
from marble.heatmaps.write import sentence
from marble.prediction import Answer, Predictor
from marble.viewer.cache import ByteCache
from marble.viewer.outlines import tissue_rings
from marble.viewer.registry import Registry, RunEntry, SlideEntry, StoredBag
from marble.viewer.tiles import Pictures, top_zoom

CACHE_BYTES = 128 << 20
OPEN_RUNS = 8
KEPT_EXPLANATIONS = 12
MAX_OCCLUDED = 256

#: slide, run, mode, target
Question = tuple[str, str, str, str | None]


class Insight:
    """What the viewer knows about slides, beyond their pixels."""

    def __init__(self, registry: Registry, pictures: Pictures, device: str = "cpu") -> None:
        self._registry, self._pictures = registry, pictures
        self._cache = ByteCache(CACHE_BYTES)
        self._device = device
        self._predictors: LRUCache[str, Predictor] = LRUCache(OPEN_RUNS)
        self._explained: LRUCache[Question, Explanation] = LRUCache(KEPT_EXPLANATIONS)
        self._sizes: dict[tuple[str, str], tuple[int, int]] = {}
        self._thinking = Lock()
        self._progress: dict[Question, tuple[int, int]] = {}

    def lattice(self, slide: SlideEntry, bag: StoredBag) -> bytes:
        """Size, pixel size and every level's cells and parents, all of this one bag."""
        key = ("lattice", slide.key, bag.key)
        known = self._cache.get(key)
        if known is None:
            body = lattice_of(bag.load(), has_picture=slide.file is not None)
            known = encoded({"bag": bag.key, **body})
            self._cache.put(key, known)
        return known

    def tissue(self, slide: SlideEntry, bag: StoredBag) -> bytes:
        """The tissue's outlines as rings of level-0 pixels, as the bag's extraction had them."""
        self._pictures.check(slide.file)
        key = ("tissue", slide.key, bag.key)
        known = self._cache.get(key)
        if known is None:
            known = encoded(tissue_rings(slide, bag, self._pictures))
            self._cache.put(key, known)
        return known

    def prediction(self, slide: SlideEntry, run: RunEntry) -> bytes:
        """The one prediction there is of this slide by this run."""
        found = self._explanation((slide.key, run.key, "attention", None))
        return encoded(answer_of(found.answer, slide, run))

    def maps(self, slide: SlideEntry, run: RunEntry, mode: str, target: str | None) -> bytes:
        """One value per tile, for every level the explanation has; with the prediction and the bag they belong to."""
        key = ("maps", slide.key, run.key, mode, target)
        known = self._cache.get(key)
        if known is None:
            found = self._explanation((slide.key, run.key, mode, target))
            said = answer_of(found.answer, slide, run)
            bag = self._registry.bag(slide, run).key
            known = encoded({**maps_of(found, run), "prediction": said, "bag": bag})
            self._cache.put(key, known)
        return known

    def geojson(self, slide: SlideEntry, run: RunEntry, mode: str, target: str | None, level: int) -> bytes | None:
        """A level's map as `marble heatmap` writes it; None if the explanation has none of this level."""
        found = self._explanation((slide.key, run.key, mode, target))
        tiles = next((one for one in found.maps if one.level == level), None)
        return None if tiles is None else json.dumps(tiles_geojson(tiles)).encode()

    def progress(self, slide: SlideEntry, run: RunEntry, mode: str, target: str | None) -> tuple[int, int] | None:
        """How far a map is that is being computed: steps done and steps in all; None if nobody works on it."""
        return self._progress.get((slide.key, run.key, mode, target))

    def boxes(self, bag: StoredBag, level: int) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """(T, 4) the tiles of a level in level-0 pixels; None if there is no such level."""
        loaded = bag.load()
        return loaded.boxes(level) if 0 <= level < loaded.depth else None

    def size(self, slide: SlideEntry, bag: StoredBag) -> tuple[int, int]:
        """(width, height) in level-0 pixels; asked for with every tile, so it is found once."""
        key = slide.key, bag.key
        if key not in self._sizes:
            self._sizes[key] = bag.load().l0_size_px
        return self._sizes[key]

    def _explanation(self, question: Question) -> Explanation:
        """Think, unless it was thought of before."""
        with self._thinking:
            if question not in self._explained:
                self._explained[question] = self._think(question)
            return self._explained[question]

    def _think(self, question: Question) -> Explanation:
        slide_key, run_key, mode, target = question
        run = self._registry.runs[run_key]
        bag = self._registry.bag(self._registry.slides[slide_key], run).load()
        tiles = len(bag.levels[0])
        if mode == "occlusion" and tiles > MAX_OCCLUDED:
            raise InputError(f"occlusion of {tiles} tiles takes too long here: use `marble heatmap --mode occlusion`")
        self._progress[question] = (0, tiles if mode == "occlusion" else 0)
        try:
            return explain(
                self._predictor(run), bag, mode, target,
                on_tile=lambda done, total: self._progress.__setitem__(question, (done, total)),
            )  # fmt: skip
        except BagError as error:
            what = f"{error.what}: start the viewer with a --store that holds the bags of this run too"
            raise InputError(what) from None
        finally:
            del self._progress[question]

    def _predictor(self, run: RunEntry) -> Predictor:
        if run.key not in self._predictors:
            self._predictors[run.key] = Predictor(run.folder, device=self._device)
        return self._predictors[run.key]


def encoded(value: object) -> bytes:
    """JSON whose floats keep every digit; NaN does not exist."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def lattice_of(bag: Bag, *, has_picture: bool) -> dict[str, Any]:
    size = bag.l0_size_px
    slide = bag.provenance.slide
    geometry = bag.provenance.levels
    levels = []
    for k, level in enumerate(bag.levels):
        pitch = bag.pitch(k)
        levels.append(
            {
                "level": k,
                "magnification": geometry[k].magnification if geometry else None,
                "mpp": geometry[k].mpp if geometry else None,
                "extent": int(pitch) if pitch == int(pitch) else pitch,
                "origin": list(bag.l0_origin_px),
                "cells": level.cells.flatten().tolist(),
                "parent": None if level.parent is None else level.parent.tolist(),
            }
        )
    return {
        "slide_id": bag.slide_id,
        "width": size[0],
        "height": size[1],
        "top_zoom": top_zoom(size),
        "mpp": None if slide is None else slide.mpp,
        "placed": bag.is_placed,
        "has_picture": has_picture,
        "levels": levels,
    }


def answer_of(answer: Answer, slide: SlideEntry, run: RunEntry) -> dict[str, Any]:
    """What the panel shows."""
    prediction = answer.prediction
    stored = run.stored.get(slide.slide_id)
    target = None if stored is None else stored.target
    return {
        "slide_id": prediction.slide_id,
        "sentence": sentence(answer),
        "label": answer.label,
        "facts": run.task.facts(answer.readout, target, run.unit),
        "readout": answer.readout,
        "logits": prediction.logits.double().tolist(),
        "order_sd": prediction.order_sd,
        "orders": len(prediction.logits_by_order),
        "part": answer.membership.part,
        "rule": answer.decision.rule,
        "threshold": answer.decision.threshold,
        "curve": [[time, value] for time, value in answer.curve.items()],
        "warnings": list(answer.warnings),
    }


def maps_of(found: Explanation, run: RunEntry) -> dict[str, Any]:
    words = meaning(found, run.task, run.unit)
    return {
        "mode": found.mode,
        "target": found.target,
        "meaning": {"unit": words.unit, "text": words.text, "low": words.low, "high": words.high},
        "maps": [
            {
                "level": tiles.level,
                "name": tiles.name,
                "signed": tiles.signed,
                "limits": list(tiles.limits),
                "values": tiles.values.tolist(),
            }
            for tiles in found.maps
        ],
    }
