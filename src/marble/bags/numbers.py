"""Arrays as notebooks have them, as tensors: whatever order of bytes, strides or container their numbers lie in."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marble.errors import BagError


def tensor_of(value: Any, name: str) -> Tensor:
    """A tensor as it is, and numbers of anything that numpy can read; copied only where torch cannot hold them.

    What holds no numbers, or not a number in each of its places, is refused in the words of `name`.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise BagError(f"{name} must be a dense tensor", hint="Give its .to_dense() or .dequantize()")
        return value
    if np.ma.is_masked(value):
        raise BagError(f"{name} hold masked numbers", hint="Leave those tiles out, or say what stands in for them")
    try:
        array = np.asarray(value)
        if array.dtype == object:  # rows in a column of a table, and tables of pandas' own numbers
            array = np.asarray(array.tolist())
        with warnings.catch_warnings():  # nothing here is ever written into
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            return torch.as_tensor(_as_torch_holds_it(array))
    except (TypeError, ValueError):  # None, text, rows of several lengths
        raise BagError(f"{name} must be an array of numbers, got {type(value).__name__}") from None


def _as_torch_holds_it(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in this machine's order of bytes, with no stride that leads back, and in 64 bits at most."""
    if array.dtype == np.longdouble:
        return array.astype(np.float64)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array) if any(step < 0 for step in array.strides) else array
