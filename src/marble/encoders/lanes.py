"""What a device does beside the host: copies in, arithmetic, copies out. Each is queued, and none is waited for.

A `Mark` stands in the queue behind what was queued; only who waits for it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor


class Mark(Protocol):
    """A place in a device's queue."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class Lane(Protocol):
    """The queues of one device."""

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the host that the device can copy from and to by itself."""

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the device."""

    def upload(self, source: Tensor, target: Tensor) -> Mark:
        """Queue a copy to the device, beside its arithmetic."""

    def compute(self, forward: Callable[[Tensor], Tensor], given: Tensor, after: Mark) -> Tensor:
        """Queue arithmetic on what will be there `after` a mark; what it gives is there later, too."""

    def download(self, source: Tensor, target: Tensor) -> Mark:
        """Queue a copy to the host, behind all arithmetic that was queued."""


class CudaLane:
    """Copies to the device have a stream of their own; arithmetic and the small copies back share the usual one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.incoming = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype).pin_memory()

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=self.device)
        # the memory may have been given back by arithmetic that is still queued
        self.incoming.wait_stream(torch.cuda.current_stream(self.device))
        return made

    def upload(self, source: Tensor, target: Tensor) -> Mark:
        with torch.cuda.stream(self.incoming):
            target.copy_(source, non_blocking=True)
        mark: Mark = self.incoming.record_event()
        return mark

    def compute(self, forward: Callable[[Tensor], Tensor], given: Tensor, after: Mark) -> Tensor:
        torch.cuda.current_stream(self.device).wait_event(cast(torch.cuda.Event, after))
        return forward(given)

    def download(self, source: Tensor, target: Tensor) -> Mark:
        target.copy_(source, non_blocking=True)
        mark: Mark = torch.cuda.current_stream(self.device).record_event()
        return mark


class PlainLane:
    """A device with one queue (Apple's): copies to it may wait, and results are read when they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def upload(self, source: Tensor, target: Tensor) -> Mark:
        target.copy_(source)
        return Later(lambda: None)

    def compute(self, forward: Callable[[Tensor], Tensor], given: Tensor, after: Mark) -> Tensor:
        after.synchronize()
        return forward(given)

    def download(self, source: Tensor, target: Tensor) -> Mark:
        return Later(lambda: target.copy_(source))


class Later:
    """A mark at which something is done by the host."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def synchronize(self) -> None:
        self.work()


def lane_of(device: torch.device) -> Lane:
    """The lane of a device that is not the CPU."""
    return CudaLane(device) if device.type == "cuda" else PlainLane(device)
