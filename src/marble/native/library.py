"""The compiled kernels, if this installation has them; callers decide what to do without them.

A kernel is a C function over raw pointers. It must be loaded after torch, whose OpenMP threads it runs on.
"""

from __future__ import annotations

import ctypes
import functools
import platform

import torch
from torch import Tensor

from marble.native.build import LIBRARY, fingerprint

REBUILD = "python -m marble.native.build"
#: ends of the kernels' names
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
#: numbers the kernels take at once; widths must be multiples of it
LANES = {torch.float32: 8, torch.float64: 4}
#: chooses among the ways to run a state-space layer
BACKEND_VARIABLE = "MARBLE_SSD_BACKEND"


@functools.cache
def missing() -> str | None:
    """Why the kernels cannot be used here; None if they can."""
    if platform.machine() in ("x86_64", "AMD64") and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return "needs a processor with AVX2"
    if not LIBRARY.is_file():
        return f"needs a C++ compiler at install: install one, then `{REBUILD}`"
    try:
        found = _library().marble_fingerprint
    except (OSError, AttributeError) as error:
        return f"{LIBRARY.name} does not load ({error}): `{REBUILD}`"
    found.restype = ctypes.c_char_p
    if found().decode() != fingerprint():
        return f"{LIBRARY.name} was made of other sources than those here: `{REBUILD}`"
    return None


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARY))


def run(kernel: str, like: Tensor, *arguments: object, blocks: int) -> None:
    """Call `kernel` of the precision of `like` on torch's threads, at most one per block of its work."""
    function = getattr(_library(), f"marble_{kernel}_{SUFFIX[like.dtype]}")
    function(*arguments, ctypes.c_long(max(1, min(torch.get_num_threads(), blocks))))


def library_number(function: str, *arguments: int) -> int:
    """What a kernel's companion says, such as how many blocks there are."""
    found = getattr(_library(), f"marble_{function}")
    found.restype = ctypes.c_long
    return int(found(*map(ctypes.c_long, arguments)))


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Where a contiguous CPU tensor's numbers are; NULL for none. The caller keeps the tensor alive."""
    if tensor is None:
        return ctypes.c_void_p()
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise AssertionError(f"kernels take contiguous CPU tensors, got {tensor.stride()} on {tensor.device}")
    return ctypes.c_void_p(tensor.data_ptr())
