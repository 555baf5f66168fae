"""Lattices, predictions and maps for the browser, as JSON bytes. Runs are opened once; one model thinks at a time."""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np

from marble.attribution import Explanation, explain
from marble.attribution.maps import is_placed, l0_size, tile_boxes
from marble.bags.bag import Bag
from marble.errors import InputError
from marble.extract.spec import ExtractSpec
from marble.heatmaps.write import sentence
from marble.prediction import Answer, Predictor
from marble.slides import outlines
from marble.slides.tissue import TissueSpec, segment
from marble.viewer.cache import ByteCache
from marble.viewer.registry import Registry, RunEntry, SlideEntry
from marble.viewer.tiles import Pictures, top_zoom

CACHE_BYTES = 128 << 20
OPEN_RUNS = 8
MAX_OCCLUDED = 256


class Insight:
    """What the viewer knows about slides, beyond their pixels."""

    def __init__(self, registry: Registry, pictures: Pictures) -> None:
        self._registry, self._pictures = registry, pictures
        self._cache = ByteCache(CACHE_BYTES)
        self._predictors: OrderedDict[str, Predictor] = OrderedDict()
        self._sizes: dict[str, tuple[int, int]] = {}
        self._thinking = Lock()

    def lattice(self, slide: SlideEntry) -> bytes:
        """Size, pixel size and every level's cells and parents."""
        key = ("lattice", slide.key)
        known = self._cache.get(key)
        if known is None:
            known = encoded(lattice_of(self._registry.bag(slide), has_picture=slide.file is not None))
            self._cache.put(key, known)
        return known

    def tissue(self, slide: SlideEntry) -> bytes:
        """The tissue's outlines as rings of level-0 pixels, found as the extraction found them."""
        key = ("tissue", slide.key, self._pictures.source(slide))
        known = self._cache.get(key)
        if known is None:
            with self._pictures.slide(slide) as opened:
                found = segment(opened, self._tissue_spec(slide))
            rings = [np.rint(ring * found.l0_per_px).astype(int).tolist()
                     for polygon in outlines.trace(found.mask) for ring in polygon]  # fmt: skip
            known = encoded({"rings": rings, "fraction": found.fraction})
            self._cache.put(key, known)
        return known

    def prediction(self, slide: SlideEntry, run: RunEntry) -> bytes:
        """The one prediction there is of this slide by this run."""
        return self._thought(("prediction", slide.key, run.key), slide, run, "attention", None)

    def maps(self, slide: SlideEntry, run: RunEntry, mode: str, target: str | None) -> bytes:
        """One value per tile, for every level the explanation has; with the prediction they belong to."""
        return self._thought(("maps", slide.key, run.key, mode, target), slide, run, mode, target)

    def boxes(self, slide: SlideEntry, level: int) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """(T, 4) the tiles of a level in level-0 pixels; None if there is no such level."""
        bag = self._registry.bag(slide)
        return tile_boxes(bag, level) if 0 <= level < bag.depth else None

    def size(self, slide: SlideEntry) -> tuple[int, int]:
        """(width, height) in level-0 pixels; asked for with every tile, so it is found once."""
        if slide.key not in self._sizes:
            self._sizes[slide.key] = l0_size(self._registry.bag(slide))
        return self._sizes[slide.key]

    def _thought(
        self, key: tuple[object, ...], slide: SlideEntry, run: RunEntry, mode: str, target: str | None
    ) -> bytes:
        known = self._cache.get(key)
        if known is not None:
            return known
        with self._thinking:
            known = self._cache.get(key)  # someone may have thought of it meanwhile
            if known is None:
                bag = self._registry.bag(slide, run)
                if mode == "occlusion" and len(bag.levels[0]) > MAX_OCCLUDED:
                    raise InputError(f"occlusion of {len(bag.levels[0])} tiles takes too long here",
                                     hint="Use `marble heatmap --mode occlusion`")  # fmt: skip
                found = explain(self._predictor(run), bag, mode, target)
                said = answer_of(found.answer)
                known = encoded(said if key[0] == "prediction" else {**maps_of(found), "prediction": said})
                self._cache.put(key, known)
        return known

    def _predictor(self, run: RunEntry) -> Predictor:
        if run.key not in self._predictors:
            self._predictors[run.key] = Predictor(run.folder)
        self._predictors.move_to_end(run.key)
        while len(self._predictors) > OPEN_RUNS:
            self._predictors.popitem(last=False)
        return self._predictors[run.key]

    def _tissue_spec(self, slide: SlideEntry) -> TissueSpec:
        settings = self._registry.bag(slide).provenance.notes.get("extract") if slide.stores else None
        return TissueSpec() if settings is None else ExtractSpec.parse(settings, where="extract").tissue


def encoded(value: object) -> bytes:
    """JSON whose floats keep every digit; NaN does not exist."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def lattice_of(bag: Bag, *, has_picture: bool) -> dict[str, Any]:
    size = l0_size(bag)
    slide = bag.provenance.slide
    geometry = bag.provenance.levels
    levels = []
    for k, level in enumerate(bag.levels):
        boxes = tile_boxes(bag, k)
        extent = int(boxes[0, 2])
        corner = (boxes[0, :2] - bag.levels[k].cells.numpy()[0, ::-1].astype(np.int64) * extent).tolist()
        levels.append(
            {
                "level": k,
                "magnification": geometry[k].magnification if geometry else None,
                "mpp": geometry[k].mpp if geometry else None,
                "extent": extent,
                "origin": corner,
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
        "placed": is_placed(bag),
        "has_picture": has_picture,
        "levels": levels,
    }


def answer_of(answer: Answer) -> dict[str, Any]:
    """What the panel shows."""
    prediction = answer.prediction
    return {
        "slide_id": prediction.slide_id,
        "sentence": sentence(answer),
        "label": answer.label,
        "readout": answer.readout,
        "logits": prediction.logits.double().tolist(),
        "order_sd": prediction.order_sd,
        "orders": len(prediction.logits_by_order),
        "rule": answer.decision.rule,
        "threshold": answer.decision.threshold,
        "curve": [[time, value] for time, value in answer.curve.items()],
        "warnings": list(answer.warnings),
    }


def maps_of(found: Explanation) -> dict[str, Any]:
    return {
        "mode": found.mode,
        "target": found.target,
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
