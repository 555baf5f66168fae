"""Too little memory is one error, whoever ran out of it; freed memory is used again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
import torch

from marble.errors import InputError, ShortOfMemoryError
from marble.memory import told_if_short

CASES = {
    "python": (MemoryError(), "needs more"),
    "system": (OSError(errno.ENOMEM, "Cannot allocate memory"), "needs more"),
    "torch": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 823132160 bytes."),
        "0.77 GiB",
    ),
    "cuda": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"), "20 GiB"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_says_for_what_where_and_how_much(name: str) -> None:
    error, much = CASES[name]
    with (
        pytest.raises(ShortOfMemoryError, match="not enough memory for 9 tiles") as raised,
        told_if_short("9 tiles", "S1"),
    ):
        raise error
    assert much in str(raised.value)
    assert "S1" in str(raised.value)


def test_the_machines_own_allocator_is_understood() -> None:
    with pytest.raises(ShortOfMemoryError, match="GiB"), told_if_short("much", "S1"):
        torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), OSError(errno.ENOENT, "none"), InputError("bad")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, told_if_short("much", "S1"):
        raise error
    assert raised.value is error


#: pages that the system had to make for a tensor of 64 MiB, after one of 128 MiB was freed
SECOND_TENSOR = """
import resource, torch
from marble.memory import keep_freed
print(keep_freed())
torch.zeros(1 << 25)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.zeros(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux' C library")
@pytest.mark.parametrize("set_by_user", [False, True])
def test_a_freed_tensor_makes_room_for_the_next(set_by_user: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment |= {"MALLOC_MMAP_THRESHOLD_": "131072"} if set_by_user else {}
    done = subprocess.run(
        [sys.executable, "-c", SECOND_TENSOR], capture_output=True, text=True, env=environment, check=True
    )
    kept, pages = done.stdout.split()
    assert kept == str(not set_by_user)
    assert (int(pages) < 1_000) is not set_by_user  # of 16,384, or fewer large ones where the system has those
