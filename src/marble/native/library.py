"""The compiled kernels, if this installation has them; callers decide what to do without them.

A kernel is a C function over raw pointers, which would read whatever it is pointed at. So no pointer is taken from a
tensor that was not first held against the shape, dtype and layout the kernel expects (`place`). The library must be
loaded after torch, whose OpenMP threads it runs on.

Where the processor has AVX-512 there is a second library of the same kernels with vectors twice as wide; it takes
the calls whose widths are multiples of those.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from marble.native.build import LIBRARY, WIDE_NAME, fingerprint, is_x86
from marble.native.layout import VECTOR_BYTES, WIDE_VECTOR_BYTES, declare, disagreement

REBUILD = "python -m marble.native.build"
#: ends of the kernels' names
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
#: numbers the kernels take at once; widths must be multiples of it
LANES = {dtype: VECTOR_BYTES // dtype.itemsize for dtype in SUFFIX}
#: chooses among the ways to run a state-space layer
BACKEND_VARIABLE = "MARBLE_SSD_BACKEND"


@functools.cache
def missing() -> str | None:
    """Why the kernels cannot be used here; None if they can."""
    if is_x86() and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return "needs a processor with AVX2"
    return _why_not(LIBRARY, wide=False)


@functools.cache
def has_wide() -> bool:
    """Whether the kernels of wide vectors can be used here."""
    if not is_x86() or "AVX512" not in torch.backends.cpu.get_cpu_capability():
        return False
    return _why_not(LIBRARY.with_name(WIDE_NAME), wide=True) is None


def _why_not(path: Path, wide: bool) -> str | None:
    if not path.is_file():
        return f"needs a C++ compiler at install: install one, then `{REBUILD}`"
    try:
        library = _library(path)
    except (OSError, AttributeError) as error:
        return f"{path.name} does not load ({error}): `{REBUILD}`"
    if library.marble_fingerprint().decode() != fingerprint():
        return f"{path.name} was made of other sources than those here: `{REBUILD}`"
    if (difference := disagreement(library, wide)) is not None:
        return f"{path.name} does not fit ({difference}): `{REBUILD}`"
    return None


@functools.cache
def _library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    declare(library)
    return library


def run(kernel: str, like: Tensor, *arguments: object, widths: tuple[int, ...], blocks: int) -> None:
    """Call `kernel` of the precision of `like` on torch's threads, at most one per block of its work.

    `widths` are those that the kernel takes in whole vectors.
    """
    wide = not any(width * like.itemsize % WIDE_VECTOR_BYTES for width in widths) and has_wide()
    library = _library(LIBRARY.with_name(WIDE_NAME) if wide else LIBRARY)
    function = getattr(library, f"marble_{kernel}_{SUFFIX[like.dtype]}")
    function(*arguments, max(1, min(torch.get_num_threads(), blocks)))


def library_number(function: str, *arguments: int) -> int:
    """What a kernel's companion says, such as how many blocks there are."""
    return int(getattr(_library(LIBRARY), f"marble_{function}")(*arguments))


def check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse, as torch would, a tensor that is not a CPU tensor of this shape and dtype."""
    if tuple(tensor.shape) != shape:
        raise RuntimeError(f"expected {name} to be {shape}, but it is {tuple(tensor.shape)}")
    if tensor.dtype != dtype:
        raise RuntimeError(f"expected {name} to be {dtype}, but it is {tensor.dtype}")
    if tensor.device.type != "cpu":
        raise RuntimeError(f"expected {name} to be on the CPU, but it is on {tensor.device}")


def place(name: str, tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> ctypes.c_void_p:
    """Where a contiguous tensor's numbers are, once it was checked; NULL for none. The caller keeps it alive."""
    if tensor is None:
        return ctypes.c_void_p()
    check(name, tensor, shape, dtype)
    if not tensor.is_contiguous():
        raise RuntimeError(f"expected {name} to be contiguous, but its strides are {tensor.stride()}")
    return ctypes.c_void_p(tensor.data_ptr())


def place_of_rows(name: str, rows: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> ctypes.c_void_p:
    """The same for rows that may lie apart, each of them contiguous."""
    check(name, rows, shape, dtype)
    if rows.stride(1) != 1 or (len(rows) > 1 and rows.stride(0) < shape[1]):
        raise RuntimeError(f"expected {name} to have contiguous rows, but its strides are {rows.stride()}")
    return ctypes.c_void_p(rows.data_ptr())
