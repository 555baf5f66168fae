"""The kernels of mamba_ssm, called by MARBLE, in Triton's interpreter, which needs no GPU. Prints JSON.

TRITON_INTERPRET=1 python -m tests.models.ssm.triton_job

Four things are pretended, since they ask for a GPU or for code that only CUDA's compiler makes: the device that kernels
are started on, how many processors it has, the choice of the fastest of many configurations (here the first), and the
package's front page, which imports its compiled scan of Mamba-1.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from marble.models.ssm import ssd_mamba, ssd_stream
from marble.models.ssm.ssd import block_shape, choose_backend
from marble.models.ssm.ssd_reference import recurrence
from tests.models.ssm.term_sizes import mamba2_terms, worst_of_the_terms
from tests.models.ssm.test_ssd import block_with_decay, outputs_and_gradients, wave, worst_difference

#: tokens, and the longest segment they are taken in; the last are three segments that hand on their state
CASES = ((1, 64), (5, 64), (64, 64), (70, 128), (70, 32))


class PretendedDevice:
    """Says that it is a CUDA device; tensors that are sent there stay on the CPU."""

    type = "cuda"

    def __str__(self) -> str:
        return "cpu"


def pretend() -> None:
    """What lets the kernels run here; before they are imported."""
    triton: Any = import_module("triton")  # an optional package
    every = triton.autotune

    def first(configs: list[Any], key: list[str], **rest: Any) -> Any:
        return every(configs=configs[:1], key=key, **rest)

    found = find_spec("mamba_ssm")
    assert found is not None
    package = ModuleType("mamba_ssm")
    package.__spec__, package.__path__ = found, list(found.submodule_search_locations or [])
    sys.modules["mamba_ssm"] = package
    triton.autotune = first
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device = lambda _: nullcontext()
    cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=1)


def errors(tokens: int, segment: int, ngroups: int) -> dict[str, float]:
    """How far outputs and gradients in float32 are from the recurrence in float64, of the same block."""
    ssd_stream.BATCHED_SEGMENT = segment
    block = block_with_decay(1e-3, 10, ngroups, seed=tokens, d_state=16, headdim=16 // ngroups).float()
    rows = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(tokens))
    fast = {name: value.double() for name, value in outputs_and_gradients(block, rows, "mamba_ssm").items()}
    block = block.double()
    slow = outputs_and_gradients(block, rows.double(), "reference")
    terms = mamba2_terms(block, rows.double(), wave(slow["output"]), wave(slow["state"]))
    return {
        "results": worst_difference(fast, {name: slow[name] for name in ("output", "state")})[0],
        "gradients": worst_of_the_terms(fast, slow, terms)[0],
    }


def trust() -> dict[str, Any]:
    """What `auto` takes where the kernels are right and where they are wrong, and how often they were tried."""
    tried = 0
    right = ssd_mamba.kernel_scan

    def counted(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal tried
        tried += 1
        return right(*inputs)

    def wrong(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        y, last = recurrence(*inputs)
        return y * 1.01, last

    def taken(dtype: torch.dtype = torch.float32) -> str:
        return choose_backend("auto", block_shape(64), cast(Tensor, SimpleNamespace(device=device, dtype=dtype)))

    device = PretendedDevice()
    ssd_mamba.kernel_scan = counted  # type: ignore[assignment]
    found: dict[str, Any] = {"right": [taken(), taken()], "float64": taken(torch.float64), "tried": tried}
    ssd_mamba.self_test.cache_clear()
    ssd_mamba.kernel_scan = wrong  # type: ignore[assignment]
    found["wrong"] = taken()
    found["why"] = ssd_mamba.self_test(str(device))
    ssd_mamba.kernel_scan = right
    ssd_mamba.self_test.cache_clear()
    return found


def main() -> None:
    pretend()
    found: dict[str, Any] = {"trust": trust()}
    ssd_mamba.why_not = lambda *_: None
    for tokens, segment in CASES:
        for ngroups in (1, 2):
            found[f"{tokens} tokens, segments of {segment}, groups {ngroups}"] = errors(tokens, segment, ngroups)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
