"""The precision of a training's forward passes: what the recipe asks for, where the machine has it.

    float32        every product with all digits
    tf32           on CUDA, products of float32 numbers rounded to 10 bits of mantissa, summed in float32; else float32
    bfloat16       projections in bfloat16; scans keep their decays, states and sums wide
    mixed-float16  what authors' recipes ask for: autocast in float16, with a scaled loss

Weights, losses, validation and predictions stay in float32. A CPU without float16 arithmetic would only imitate it, at
a tenth of the speed: there the training is in float32, and a note in the run's record says so. So it is on virtual
machines that show instructions (AMX) which they do not carry out: there torch's first narrow product ends the program.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from marble.bags.bag import Bag
from marble.models import BagModel, Output, Recipe

WITHOUT_FLOAT16 = (
    "the recipe asks for mixed float16 precision, but this CPU has no float16 arithmetic: trained in float32"
)
WITHOUT_NARROW = (
    "the recipe asks for {precision}, but a product in it ends a program on this machine: trained in float32. "
    "If the machine is virtual, ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment may help"
)
WITHOUT_TF32 = "the recipe asks for TF32, which only CUDA devices have: trained in float32"

NARROW = {"mixed-float16": torch.float16, "bfloat16": torch.bfloat16}


class Precision:
    """How the forward passes of one training are computed.

    Args:
        recipe: of the training.
        device: it runs on.

    Attributes:
        used: what they are computed in.
        notes: for the run's record, where this is not what the recipe asks for.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.device, self.used, self.notes = device, recipe.precision, list[str]()
        if self.used == "mixed-float16" and device.type == "cpu" and not cpu_has_float16():
            self.used, self.notes = "float32", [WITHOUT_FLOAT16]
        narrow = NARROW.get(self.used)
        if narrow is not None and device.type == "cpu" and not cpu_outlives(narrow):
            self.used, self.notes = "float32", [WITHOUT_NARROW.format(precision=recipe.precision)]
        if self.used == "tf32" and device.type != "cuda":
            self.used, self.notes = "float32", [WITHOUT_TF32]
        for note in self.notes:
            warnings.warn(note, stacklevel=2)

    @property
    def mixed(self) -> bool:
        """Whether the loss must be scaled."""
        return self.used == "mixed-float16"

    @contextmanager
    def products(self) -> Iterator[None]:
        """Inside, products of float32 numbers are as exact as this precision says, in both directions."""
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if self.used == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = self.used == "tf32"
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]

    def forward(self, model: BagModel, bag: Bag) -> Output:
        dtype = NARROW.get(self.used)
        if dtype is None:
            return model(bag)
        with torch.autocast(self.device.type, dtype=dtype):
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


@functools.cache
def cpu_outlives(dtype: torch.dtype) -> bool:
    """Whether a program that multiplies in `dtype` on this CPU goes on; tried once, by another program."""
    product = f"import torch; x = torch.ones(64, 64, dtype={dtype}); x @ x"
    return subprocess.run([sys.executable, "-c", product], capture_output=True, check=False).returncode >= 0
