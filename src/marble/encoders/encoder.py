"""`Encoder`: a frozen network with its identity. Tiles in, tokens out; nothing else is known outside this room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from marble.bags import EncoderIdentity
from marble.encoders.catalogue import EncoderRow
from marble.encoders.feed import Feed, Take
from marble.errors import InputError, NonFiniteError

Tiles = NDArray[np.uint8]  # (n, px, px, 3)
Tokens = NDArray[np.float32]  # (n, dim)
RunTiles = Callable[[Tiles], Tokens]


@dataclass(frozen=True, eq=False)
class Encoder:
    """A loaded encoder.

    Args:
        row: its catalogue row.
        dim: length of a token.
        input_px: side of the tiles it takes; tiles of another size go through :meth:`fit` first.
        run: uint8 (n, input_px, input_px, 3) -> float32 (n, dim); may be called from several threads.
        weights_sha256: of the file its weights came from; None if it has none.
        precision: of its arithmetic.
        device: where it runs.
        backend: what runs it, for the record.
        feeds: one for each accelerator it runs on; none on a CPU, where every thread may call `run`.
    """

    row: EncoderRow
    dim: int
    input_px: int
    run: RunTiles
    weights_sha256: str | None
    precision: str = "float32"
    device: str = "cpu"
    backend: str = "torch"
    feeds: tuple[Feed, ...] = ()

    @property
    def name(self) -> str:
        return self.row.name

    def identity(self) -> EncoderIdentity:
        """What is written into every bag, and must be equal for bags to be used together."""
        return EncoderIdentity(
            name=self.name,
            dim=self.dim,
            input_px=self.input_px,
            weights_sha256=self.weights_sha256,
            revision=self.row.revision,
            precision=self.precision,
        )

    def fit(self, tile: Tiles) -> Tiles:
        """A square tile (px, px, 3) as (input_px, input_px, 3): the whole field of view, never a crop.

        Half the size or less by area; a little smaller (256 to 224 px, the usual case) by bilinear interpolation, which
        still sees every pixel and takes a sixth of the time; larger by bicubic interpolation.
        """
        px = tile.shape[0]
        if px == self.input_px:
            return tile
        shrunk = cv2.INTER_AREA if px >= 2 * self.input_px else cv2.INTER_LINEAR
        how = shrunk if px > self.input_px else cv2.INTER_CUBIC
        return cv2.resize(tile, (self.input_px, self.input_px), interpolation=how).astype(np.uint8, copy=False)

    def encode(self, batch: Tiles) -> Tokens:
        """Tokens (n, dim) of tiles (n, input_px, input_px, 3)."""
        return self._checked(self.run(self._accepted(batch)), len(batch))

    def begin(self, feed: Feed, batch: Tiles) -> Take:
        """Queue a batch on one of the `feeds`; what is given back waits for it, and is what `encode` gives."""
        take = feed.submit(self._accepted(batch))
        return lambda: self._checked(take(), len(batch))

    def _accepted(self, batch: Tiles) -> Tiles:
        wanted = (self.input_px, self.input_px, 3)
        if batch.dtype != np.uint8 or batch.ndim != 4 or batch.shape[1:] != wanted or not len(batch):
            raise InputError(
                f"encoder '{self.name}' takes uint8 tiles (n, {self.input_px}, {self.input_px}, 3), "
                f"got {batch.dtype} {batch.shape}",
                hint="Resize tiles with `encoder.fit(tile)`",
            )
        return np.ascontiguousarray(batch)

    def _checked(self, tokens: Tokens, count: int) -> Tokens:
        if tokens.shape != (count, self.dim):
            raise InputError(f"encoder '{self.name}' gave {tokens.shape}, not ({count}, {self.dim})")
        if not np.isfinite(tokens).all():
            raise NonFiniteError(f"encoder '{self.name}' gave NaN or infinity", hint="Check its weights and precision")
        return tokens

    def far_from(self, mpp: float) -> str | None:
        """A sentence if `mpp` is far from the pixel sizes this encoder was trained for, else None."""
        return self.row.far_from(mpp)
