"""mamba_ssm's own kernels behind MARBLE's door, in Triton's interpreter: outputs, gradients, and whether to trust them.

`make triton-test` installs what this needs, beside the environment and not into it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tests.docs.pages import ROOT
from tests.models.ssm.triton_job import CASES

NEEDED = ("triton", "mamba_ssm", "einops")
#: of the largest output or state; the interpreter multiplies in float32
RESULTS = 2e-6
#: of the terms that an element of a gradient is the sum of: 160 roundings, as other paths are allowed in float64
GRADIENTS = 160 * torch.finfo(torch.float32).eps

absent = [name for name in NEEDED if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(absent), reason=f"needs the packages triton and mamba-ssm (no {', '.join(absent)}): make triton-test"
    ),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the kernels gave, from a process of its own: the interpreter is chosen when Triton is imported."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.models.ssm.triton_job"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    result: dict[str, Any] = json.loads(run.stdout)
    return result


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("tokens", "segment"), CASES)
def test_the_kernels_are_the_recurrence(found: dict[str, Any], tokens: int, segment: int, groups: int) -> None:
    errors = found[f"{tokens} tokens, segments of {segment}, groups {groups}"]
    assert errors["results"] < RESULTS
    assert errors["gradients"] < GRADIENTS


def test_auto_takes_the_kernels_where_they_are_right_and_tries_them_once(found: dict[str, Any]) -> None:
    trust = found["trust"]
    assert trust["right"] == ["mamba_ssm", "mamba_ssm"]
    assert trust["tried"] == 1
    assert trust["float64"] == "batched"
    assert trust["wrong"] == "batched"
    assert "off by" in trust["why"]
