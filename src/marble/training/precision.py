"""Mixed precision: the forward pass of a training step in float16, where the recipe asks for it and the machine has it.

Weights, losses, validation and predictions stay in float32. A CPU without float16 arithmetic would only imitate it, at
a tenth of the speed: there the training is in float32, and a note in the run's record says so.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch

from marble.bags.bag import Bag
from marble.models import BagModel, Output, Recipe

WITHOUT_FLOAT16 = (
    "the recipe asks for mixed float16 precision, but this CPU has no float16 arithmetic: trained in float32"
)


class Precision:
    """How the forward passes of one training are computed.

    Args:
        recipe: of the training.

    Attributes:
        mixed: whether they are in float16.
        notes: for the run's record, where this is not what the recipe asks for.
    """

    def __init__(self, recipe: Recipe) -> None:
        wanted = recipe.precision == "mixed-float16"
        self.mixed = wanted and cpu_has_float16()
        self.notes = [WITHOUT_FLOAT16] if wanted and not self.mixed else []
        for note in self.notes:
            warnings.warn(note, stacklevel=2)

    def forward(self, model: BagModel, bag: Bag) -> Output:
        if not self.mixed:
            return model(bag)
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(bag)
        return replace(
            out,
            logits=out.logits.float(),
            side=tuple(replace(side, logits=side.logits.float()) for side in out.side),
            hidden={name: tensor.float() for name, tensor in out.hidden.items()},
        )


def cpu_has_float16() -> bool:
    """Whether matrix products in float16 are computed by this CPU, not imitated."""
    # Not every build of torch has the question: Apple's has no oneDNN, and then nothing here computes in float16.
    asked = getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", None)
    return asked is not None and bool(asked())
