"""`Feed`: an encoder on one accelerator that is given the next batch while it works on this one.

There are two sets of buffers, each made once: tiles on the host and on the device, tokens on the host. While the device
computes with one set, the tiles of the next batch are copied through the other; a batch's tokens are asked for when the
next has been queued. So the host never waits for what it has just queued, and the device finds its next batch there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marble.encoders.lanes import Lane, Mark

#: uint8 (n, px, px, 3) on the device -> float32 (n, dim) on the device; waits for nothing
Forward = Callable[[Tensor], Tensor]
#: waits for a batch, and gives its tokens (n, dim)
Take = Callable[[], NDArray[np.float32]]
#: batches that one device has at a time
SETS = 2


@dataclass
class _Set:
    """The buffers of one batch, and the mark behind which they are free."""

    tiles: Tensor | None = None
    placed: Tensor | None = None
    tokens: Tensor | None = None
    busy: Mark | None = None

    def free(self) -> None:
        if self.busy is not None:
            mark, self.busy = self.busy, None
            mark.synchronize()


class Feed:
    """Batches of tiles for one device. Who gives it some holds its `lock`, until their tokens are taken."""

    def __init__(self, forward: Forward, lane: Lane) -> None:
        self.forward, self.lane, self.lock = forward, lane, Lock()
        self.sets = [_Set() for _ in range(SETS)]
        self.given = 0

    def run(self, tiles: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The tokens of one batch, waited for."""
        with self.lock:
            return self.submit(tiles)()

    def submit(self, tiles: NDArray[np.uint8]) -> Take:
        """Queue a batch, and say how to get its tokens; that must happen before `SETS` more are queued."""
        of = self.sets[self.given % SETS]
        self.given += 1
        of.free()  # is free already, unless an error kept its tokens from being taken
        n = len(tiles)
        if of.tiles is None or of.placed is None or of.tiles.shape[1:] != tiles.shape[1:] or len(of.tiles) < n:
            of.tiles = self.lane.host_buffer(tiles.shape, torch.uint8)
            of.placed = self.lane.device_buffer(tiles.shape, torch.uint8)
        of.tiles[:n].copy_(torch.from_numpy(tiles))
        of.busy = there = self.lane.upload(of.tiles[:n], of.placed[:n])
        found = self.lane.compute(self.forward, of.placed[:n], after=there)  # (n, dim)
        if of.tokens is None or len(of.tokens) < n:
            of.tokens = self.lane.host_buffer((len(of.tiles), found.shape[1]), torch.float32)
        tokens = of.tokens[:n]
        of.busy = done = self.lane.download(found, tokens)

        def take() -> NDArray[np.float32]:
            if of.busy is not done:
                raise RuntimeError("the tokens of this batch were taken, or written over")
            of.free()
            return tokens.numpy().copy()

        return take


def on_cpu(forward: Forward) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """The same arithmetic on the CPU, in the thread that asks for it."""

    def run(tiles: NDArray[np.uint8]) -> NDArray[np.float32]:
        tokens: NDArray[np.float32] = forward(torch.from_numpy(tiles)).numpy()
        return tokens

    return run
