"""What an extraction does (`ExtractSpec`, which names its folder) and what it runs on (`Machine`, which does not)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from marble.bags.provenance import Sha256
from marble.compute.executor import Executor, cores_here
from marble.compute.limits import GIB, Limits
from marble.encoders import Encoder, encoder_row, load_encoder
from marble.errors import InputError, MarbleError
from marble.slides.lattice import PyramidSpec
from marble.slides.quality import QualitySpec
from marble.slides.tissue import TissueSpec
from marble.specs import Spec


class ExtractSpec(Spec):
    """Every choice that changes a bag's numbers; bags live in `STORE/<fingerprint of this>/`."""

    pyramid: PyramidSpec
    tissue: TissueSpec = TissueSpec()
    quality: QualitySpec = QualitySpec()
    encoders: tuple[str, ...] = Field(default=("lite0",), description="one for all levels, or one for each")
    weights_sha256: dict[str, Sha256] = Field(
        default_factory=dict, description="encoder name -> hash its weights must have"
    )
    precision: Literal["float32", "float16", "bfloat16"] = Field(default="float32", description="of the encoder")
    dtype: Literal["float16", "float32"] = Field(default="float16", description="of the stored tokens")
    batch: int = Field(default=16, ge=1, le=4096, description="tiles encoded together")
    max_missing: float = Field(default=0.01, ge=0, le=1, description="share of tiles that may lack pixels")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.encoders) not in (1, self.pyramid.depth):
            raise ValueError(
                f"{len(self.encoders)} encoders for {self.pyramid.depth} levels: give one, or one for each"
            )
        try:
            for name in self.encoders:
                encoder_row(name)
        except MarbleError as error:
            raise ValueError(error.what) from None
        if unused := sorted(set(self.weights_sha256) - set(self.encoders)):
            raise ValueError(f"weights_sha256 names '{unused[0]}', which is not among the encoders")
        return self

    @property
    def encoder_of_level(self) -> tuple[str, ...]:
        return self.encoders if len(self.encoders) > 1 else self.encoders * self.pyramid.depth

    def cautions(self) -> list[str]:
        """Encoders that would run far from the pixel size they were trained for."""
        asked = zip(self.encoder_of_level, self.pyramid.asked_mpps, strict=True)
        found = (encoder_row(name).far_from(mpp) for name, mpp in asked)
        return list(dict.fromkeys(sentence for sentence in found if sentence))


@dataclass(frozen=True)
class Machine:
    """Where and how fast an extraction runs; none of it changes a bag.

    Args:
        device: of the encoder; several, comma-separated, share its batches.
        threads: that read and encode side by side in this process; 0 takes every core it may use, shared
            with the slides beside it.
        weights: encoder name -> local weights file.
        allow_download: fetch weights that are not here.
    """

    device: str = "cpu"
    threads: int = 0
    weights: dict[str, Path] = field(default_factory=dict)
    allow_download: bool = False

    @property
    def thread_count(self) -> int:
        return self.threads or cores_here()

    def shared_by(self, executor: Executor) -> Machine:
        """The same, with the threads that a slide has beside the others that `executor` works on."""
        return self if self.threads else replace(self, threads=executor.cores_each)


#: what a worker may use for one slide where the user has no say in it
SLIDE_LIMITS = Limits(memory_bytes=4 * GIB, stall_s=900, items=64)


def load_encoders(spec: ExtractSpec, machine: Machine) -> list[Encoder]:
    """The encoder of each level; each is loaded once per process."""
    if strangers := sorted(set(machine.weights) - set(spec.encoders)):
        what = f"weights of '{strangers[0]}' were given, but the tiles are encoded by {', '.join(spec.encoders)}"
        raise InputError(what, where="weights", hint="Name the encoder they are of, or leave them out")
    return [
        _loaded(
            name,
            machine.weights.get(name),
            machine.device,
            spec.precision,
            machine.allow_download,
            spec.weights_sha256.get(name),
        )
        for name in spec.encoder_of_level
    ]


def forget_encoders() -> None:
    """Let go of what `load_encoders` keeps, where other processes do the work."""
    _loaded.cache_clear()


@lru_cache(maxsize=4)
def _loaded(
    name: str,
    weights: Path | None,
    device: str,
    precision: Literal["float32", "float16", "bfloat16"],
    allow_download: bool,
    expect_sha256: str | None,
) -> Encoder:
    return load_encoder(
        name,
        weights,
        device=device,
        precision=precision,
        allow_download=allow_download,
        expect_sha256=expect_sha256,
    )
