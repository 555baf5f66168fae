"""The losses of an epoch, read without making the host wait for an accelerator."""

from __future__ import annotations

import math
from collections import deque

from torch import Tensor

from marble.errors import NonFiniteError


class LateLosses:
    """Adds up losses. On the CPU each is looked at when it comes; elsewhere one step later, when it is there anyway.

    Args:
        epoch: the epoch's number, counted from 1.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._unread: deque[tuple[Tensor, str, int]] = deque()
        self._sum = 0.0

    def add(self, loss: Tensor, slide: str, place: int) -> None:
        """Take the loss of a step; raises if it, or that of the step before, is not finite."""
        self._unread.append((loss, slide, place))
        self._read(down_to=0 if loss.device.type == "cpu" else 1)

    def total(self) -> float:
        """The sum of all; raises if one is not finite."""
        self._read(down_to=0)
        return self._sum

    def _read(self, down_to: int) -> None:
        while len(self._unread) > down_to:
            loss, slide, place = self._unread.popleft()
            value = float(loss)
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"loss is {value} at epoch {self._epoch}, step {place + 1}",
                    where=slide,
                    hint="Lower the learning rate, or check this slide's features with `marble verify`",
                )
            self._sum += value
