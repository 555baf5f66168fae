"""A device of which only the clock exists: one queue for copies to it, one for all else, and a host beside them.

What is queued begins when its queue is free and what it waits for is done. The host goes on at once; it loses time only
where it waits for a mark, or works itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marble.encoders.lanes import Mark

UPLOAD, COMPUTE, DOWNLOAD, FILL = 2, 5, 1, 1


@dataclass
class VirtualMark:
    """When a queue passes it."""

    device: VirtualDevice
    at: int

    def synchronize(self) -> None:
        self.device.waits.append((self.device.now, self.at))
        self.device.now = max(self.device.now, self.at)


@dataclass
class VirtualDevice:
    """A lane; `waits` are when the host began to wait and what for, `buffers` the sizes of what was allocated."""

    now: int = 0
    copying: int = 0  # when the queue of copies to the device is done
    computing: int = 0
    began: list[int] = field(default_factory=list)  # each batch's arithmetic
    waits: list[tuple[int, int]] = field(default_factory=list)
    buffers: list[tuple[int, ...]] = field(default_factory=list)

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.buffers.append(shape)
        return torch.empty(shape, dtype=dtype)

    device_buffer = host_buffer

    def upload(self, source: Tensor, target: Tensor) -> VirtualMark:
        self.now += FILL  # what the host did before: put the tiles into the buffer
        target.copy_(source)
        self.copying = max(self.copying, self.now) + UPLOAD
        return VirtualMark(self, self.copying)

    def compute(self, forward: Callable[[Tensor], Tensor], given: Tensor, after: Mark) -> Tensor:
        assert isinstance(after, VirtualMark)
        begun = max(self.computing, self.now, after.at)
        self.began.append(begun)
        self.computing = begun + COMPUTE
        return forward(given)

    def download(self, source: Tensor, target: Tensor) -> VirtualMark:
        target.copy_(source)
        self.computing += DOWNLOAD
        return VirtualMark(self, self.computing)
