"""Four batches through the feed of an encoder on a fake GPU, with streams that write down what is asked of them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marble.encoders import lite0
from marble.encoders.feed import Feed
from marble.encoders.lanes import CudaLane
from tests.fake_cuda.watching import watched

BATCHES = 4


class Notes:
    """What streams and the host were asked to do, in this order, and the numbers of the marks the host waited for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.marks: list[int] = []
        self.made = 0


class NotedStream:
    """Stands for `torch.cuda.Stream`."""

    def __init__(self, notes: Notes, name: str) -> None:
        self.notes, self.name = notes, name

    def record_event(self) -> NotedEvent:
        self.notes.log.append(f"{self.name}: mark")
        self.notes.made += 1
        return NotedEvent(self.notes, self.name, self.notes.made - 1)

    def wait_event(self, _: NotedEvent) -> None:
        self.notes.log.append(f"{self.name}: waits")

    def wait_stream(self, other: NotedStream) -> None:
        self.notes.log.append(f"{self.name}: waits for {other.name}")


class NotedEvent:
    """Stands for `torch.cuda.Event`."""

    def __init__(self, notes: Notes, stream: str, number: int) -> None:
        self.notes, self.stream, self.number = notes, stream, number

    def synchronize(self) -> None:
        self.notes.log.append(f"host: waits for {self.stream}")
        self.notes.marks.append(self.number)


@contextmanager
def noted_streams() -> Iterator[Notes]:
    """Streams of CUDA that only take notes; a build of torch for CPUs has none. Fake tensors become arrays of zeros."""
    notes = Notes()
    computing = NotedStream(notes, "computing")
    cuda: Any = torch.cuda
    tensor: Any = Tensor
    kept = cuda.Stream, cuda.current_stream, cuda.stream, tensor.numpy

    @contextmanager
    def on(stream: NotedStream) -> Iterator[None]:
        yield

    def zeros(self: Tensor) -> NDArray[np.float32]:
        return np.zeros(self.shape, np.float32)

    cuda.Stream = lambda device: NotedStream(notes, "copying")
    cuda.current_stream, cuda.stream, tensor.numpy = lambda device: computing, on, zeros
    try:
        yield notes
    finally:
        cuda.Stream, cuda.current_stream, cuda.stream, tensor.numpy = kept


def feed_an_encoder() -> dict[str, Any]:
    """What the feed of encoder `lite0` asked of the device for `BATCHES` batches, tokens taken one batch late."""
    device = torch.device("cuda:0")
    net = lite0.folded(lite0.read_state(lite0.package_weights()))
    tiles = np.zeros((2, 64, 64, 3), np.uint8)
    try:
        with watched() as watch, noted_streams() as notes:
            feed = Feed(lite0.forward_torch(net, device), CudaLane(device))
            watch.counts = type(watch.counts)()  # the weights were copied
            before = feed.submit(tiles)
            for _ in range(BATCHES - 1):
                following = feed.submit(tiles)
                before()
                before = following
            before()
    except Exception as error:
        return {"error": f"{error}: {traceback.format_exc()[-600:]}"}
    return {"log": notes.log, "marks": notes.marks, "counts": watch.counts.record()}
