"""A run that was told what to look for: tiles whose blue varies. The colour encoder's sixth number says how much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from marble.bags.tensors import map_file, to_bytes
from marble.files import publish, publish_json, read_json, sha256_bytes
from marble.slides.slide import Box, Slide
from marble.training.results import sealed

BLUE_SD = 5  # place of the standard deviation of blue among the colour statistics
STEEPNESS = 400.0


def teach(run: Path) -> Path:
    """Replace the weights of a finished `max` run: the second class's logit grows with the tile's spread of blue."""
    tensors = {name: torch.zeros_like(tensor) for name, tensor in map_file(run / "model.safetensors")[0].items()}
    tensors["embed.0.weight"][0, BLUE_SD] = 1.0
    tensors["classifier.weight"][1, 0] = STEEPNESS
    data = to_bytes(tensors, {})
    publish(run / "model.safetensors", data)
    fit, record = read_json(run / "fit.json"), read_json(run / "run.json")
    fit["model_sha256"] = record["sha256"]["model"] = sha256_bytes(data)
    publish_json(run / "fit.json", fit)
    publish_json(run / "run.json", sealed(record))
    return run


def bluest(slide: Path, boxes: np.ndarray[tuple[int, int], np.dtype[np.int64]], px: int) -> int:
    """The tile whose blue varies most, found from the slide's pixels alone."""
    with Slide.open(slide) as opened:
        spread = [opened.read(Box(*box), (px, px)).pixels[..., 2].astype(np.float64).std() for box in boxes.tolist()]
    return int(np.argmax(spread))
