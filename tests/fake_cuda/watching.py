"""Counts what a GPU would be asked to do: kernels, values that Python waits for, copies; and refuses mixed devices.

Runs on fake CUDA tensors (see `fakecuda.cpp`). Where Python reads a value there is none, so one is made up.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

#: operators that launch nothing
FREE = {
    "view", "t", "transpose", "permute", "slice", "select", "expand", "unsqueeze", "squeeze", "as_strided", "detach",
    "alias", "split", "split_with_sizes", "unbind", "diagonal", "_unsafe_view", "reshape", "unfold", "chunk",
    "lift_fresh", "_reshape_alias", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
    "sym_size", "unflatten", "movedim", "is_same_size", "_pin_memory", "is_pinned", "device",
}  # fmt: skip
#: operators whose result's size is a value of the device
SIZED_BY_VALUES = ("nonzero", "_unique2", "unique_dim", "unique_consecutive", "equal", "bincount", "masked_select")


@dataclass
class Counts:
    """What one piece of work asked of the device, by line of the package."""

    kernels: int = 0
    syncs: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    waited_for: Counter[str] = field(default_factory=Counter)  # copies to the host that it waits for

    def record(self) -> dict[str, Any]:
        found = {"syncs": self.syncs, "copies": self.copies, "waited_for": self.waited_for}
        return {"kernels": self.kernels} | {name: dict(lines) for name, lines in found.items()}


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts into `counts`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        tensors = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, Tensor)]
        on_device = any(tensor.device.type == "cuda" for tensor in tensors)
        if name == "is_pinned":
            return False
        if name == "_pin_memory":
            return tensors[0]
        if name in ("_local_scalar_dense", "item"):
            if on_device:
                self.counts.syncs[_line()] += 1
            return _made_up(tensors[0])
        if name in SIZED_BY_VALUES:
            if on_device:
                self.counts.syncs[f"{_line()} {name}"] += 1
            return _sized(name, tensors[0], args, kwargs)
        if name in ("index", "index_put", "index_put_"):
            masked = self._check_indices(name, args)
            if masked is not None:
                return masked
        if name in ("_to_copy", "copy_") and on_device:
            kinds = {tensor.device.type for tensor in tensors}
            if kwargs.get("device") is not None:
                kinds.add(torch.device(kwargs["device"]).type)
            if len(kinds) > 1:
                self.counts.copies[_line()] += 1
                to = args[0].device if name == "copy_" else torch.device(kwargs["device"])
                at_once = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
                if to.type == "cpu" and at_once:
                    self.counts.waited_for[_line()] += 1
        if on_device and name not in FREE:
            self.counts.kernels += 1
        return func(*args, **kwargs)

    def _check_indices(self, name: str, args: Any) -> Tensor | None:
        """Refuse indices of another device; where a mask decides about a size, say so and make one up."""
        target = args[0]
        for index in args[1]:
            if index is None:
                continue
            if index.device != target.device:
                raise RuntimeError(f"{name} of a tensor on {target.device} by one on {index.device} at {_line()}")
            if index.dtype == torch.bool:
                if target.device.type == "cuda":
                    self.counts.syncs[f"{_line()} {name} by a mask"] += 1
                if name == "index":
                    taken: Tensor = target.new_zeros(target.shape[0], *target.shape[index.ndim :])
                    return taken
        return None


@contextmanager
def watched() -> Iterator[Watch]:
    """Tensors made inside are fake, and what is done with them is counted."""
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        yield watch


def placed(model: nn.Module) -> nn.Module:
    """The model on the fake device; `Module.to` would swap tensors, which fake ones refuse."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                moved = parameter.detach().to("cuda:0")
                module._parameters[name] = nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = buffer.to("cuda:0")
    return model


def _line() -> str:
    """The innermost line of the package on the stack."""
    for frame in reversed(traceback.extract_stack()):
        if "/src/marble/" in frame.filename:
            return f"{frame.filename.split('/src/marble/', 1)[1]}:{frame.lineno}"
    return "elsewhere"


def _made_up(tensor: Tensor) -> bool | float | int:
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.dtype.is_floating_point else 0


def _sized(name: str, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    count = max(1, tensor.shape[0]) if tensor.ndim else 1
    if name == "nonzero":
        return tensor.new_zeros(min(tensor.numel(), count), tensor.ndim, dtype=torch.long)
    if name == "equal":
        return True
    if name == "bincount":
        length = kwargs.get("minlength", args[2] if len(args) > 2 else 0) or 4
        return tensor.new_zeros(length, dtype=torch.long)
    if name == "masked_select":
        return tensor.new_zeros(count)
    places = tensor.new_zeros(tensor.numel(), dtype=torch.long)
    return tensor.new_zeros(4), places, places
