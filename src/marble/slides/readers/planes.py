"""What a file format must offer so that `Slide` can read it: a few planes of the same picture, finest first."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from marble.slides.mpp import PixelSizeClues

Pixels = npt.NDArray[np.uint8]  # (h, w, 3)
Mask = npt.NDArray[np.bool_]  # (h, w)
WHITE = 255


class Planes(Protocol):
    """An open file. `read` is given boxes that lie inside the plane, in that plane's own pixels.

    Pixels the file does not hold, or that cannot be decoded, come back white and true in the mask (None: all there).
    """

    vendor: str
    sizes: tuple[tuple[int, int], ...]  # (width, height), finest first
    clues: PixelSizeClues

    def read(self, plane: int, x: int, y: int, width: int, height: int) -> tuple[Pixels, Mask | None]: ...

    def close(self) -> None: ...
