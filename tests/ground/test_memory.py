"""Too little memory is one error, whoever ran out of it."""

from __future__ import annotations

import errno

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
