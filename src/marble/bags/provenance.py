"""Where a bag's numbers come from: which pixels, which lattice, which encoder."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from marble.errors import BagError
from marble.magnification import mpp_at
from marble.specs import Spec

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


#: note in the provenance of a bag whose files hold no coordinates: its cells are an order, not places
MADE_UP_CELLS = "made_up_cells"


class EncoderIdentity(Spec):
    """The network that turned tiles into tokens; two bags agree only if every field does."""

    name: str
    dim: int = Field(gt=0)
    input_px: int = Field(gt=0)
    weights_sha256: Sha256 | None = None
    revision: str | None = None
    precision: str = "float32"


#: how a refusal of bags that were made in different ways begins
DIFFERS = "provenance differs in"


class Geometry(Spec):
    """One level's place on the slide."""

    magnification: float = Field(gt=0, description="nominal, 10 = 1 um/px")
    mpp: float = Field(gt=0, description="actual um per pixel of the tiles as encoded")
    tile_px: int = Field(gt=0, description="side of the tile as read")
    l0_extent_px: int = Field(gt=0, description="side of the tile in pixels of the file's full-resolution plane")


class SlideIdentity(Spec):
    """The slide file: enough to find it again and to see that it is the same."""

    name: str
    l0_width_px: int = Field(gt=0)
    l0_height_px: int = Field(gt=0)
    mpp: float = Field(gt=0)
    mpp_origin: str
    sha256: Sha256 | None = None
    verified: bool = Field(default=False, description="the hash was checked against a manifest of the user's")


class Provenance(Spec):
    """All of a bag's origin. `source` is the tool that made the features."""

    source: str = "memory"
    spec: str | None = Field(default=None, description="fingerprint of the extraction settings")
    slide: SlideIdentity | None = None
    l0_origin_px: tuple[int, int] | None = Field(default=None, description="(x, y) of cell (0, 0)")
    levels: tuple[Geometry, ...] = ()
    encoders: tuple[EncoderIdentity, ...] = Field(default=(), description="one for each level, or one for all")
    notes: dict[str, Any] = Field(default_factory=dict)

    def without_slide(self) -> Provenance:
        """What all bags made in the same way share; sizes are nominal, so it does not matter which slide came first."""
        nominal = tuple(
            level.model_copy(update={"mpp": mpp_at(level.magnification), "l0_extent_px": level.tile_px})
            for level in self.levels
        )
        settings = {key: value for key, value in self.notes.items() if key == "extract"}
        changes = {"slide": None, "l0_origin_px": None, "levels": nominal, "notes": settings}
        return self.model_copy(update=changes)

    def recipe(self) -> dict[str, Any]:
        """What must be equal for two bags to be used together: how, not from which slide."""
        return {
            "source": self.source.split(" ")[0],
            "spec": self.spec,
            "encoders": [encoder.model_dump(mode="json") for encoder in self.encoders],
            "levels": [(level.magnification, level.tile_px) for level in self.levels],
        }

    def require_same_recipe(self, other: Provenance, *, where: object, against: object) -> None:
        """Raise if tokens of `self` and `other` must not be mixed, naming the field and both values."""
        ours, theirs = self.recipe(), other.recipe()
        for key, value in ours.items():
            if value != theirs[key]:
                here, there = _apart(value, theirs[key])
                raise BagError(
                    f"{DIFFERS} '{key}': {here} here, {there} in {against}",
                    where=where,
                    hint="Bags made in different ways cannot be trained on together; keep them in separate stores",
                )

    def require_places(self, model: str, slide_id: str) -> None:
        """Refuse a model that reads where tiles lie, if nobody knows it."""
        if MADE_UP_CELLS in self.notes:
            raise BagError(
                f"{model} reads where tiles lie, and the features of this bag came without coordinates",
                where=slide_id,
                hint="Import features with coordinates, or choose a model that reads none, such as abmil",
            )


def _apart(ours: Any, theirs: Any) -> tuple[Any, Any]:
    """Of two encoders only the fields that differ; of anything else all of it."""
    alike = isinstance(ours, list) and len(ours) == len(theirs) and all(isinstance(one, dict) for one in ours + theirs)
    if not alike:
        return ours, theirs
    keys = [key for key in ours[0] if any(mine[key] != other[key] for mine, other in zip(ours, theirs, strict=True))]
    here, there = (
        ", ".join(" ".join(f"{key} {encoder[key]}" for key in keys) for encoder in encoders)
        for encoders in (ours, theirs)
    )
    return here, there
