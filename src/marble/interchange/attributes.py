"""What other tools' files say beside their numbers: names of datasets, attributes of the grid, names of folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marble.errors import BagError
from marble.interchange.hdf5 import ForeignFile
from marble.interchange.tiles import LevelHints, Tiles

FEATURE_NAMES = ("features", "feats", "patch_embeddings", "embeddings")
COORDINATE_NAMES = ("coords", "coordinates")


@dataclass(frozen=True)
class FileLayout:
    """A tool's way to lay out an HDF5 file: how it is recognised, and how it is read."""

    fits: Callable[[ForeignFile], bool]
    read: Callable[[ForeignFile, LevelHints], Tiles]


def grid_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """What TRIDENT's and CLAM's attributes say of the grid, as fields of :class:`Tiles`."""
    size = whole_number(about.get("patch_size"))
    extent = number(about.get("patch_size_level0"))
    downsample = number(np.atleast_1d(about.get("downsample", 0))[0])
    if extent is None and size is not None and downsample is not None:
        extent = float(size * int(downsample) * int(number(about.get("custom_downsample")) or 1))
    width, height = whole_number(about.get("level0_width")), whole_number(about.get("level0_height"))
    return {
        "extent": extent,
        "tile_px": size,
        "magnification": number(about.get("target_magnification")),
        "slide_magnification": number(about.get("level0_magnification")),
        "slide_mpp": number(about.get("mpp")),
        "slide_size_px": (width, height) if width and height else None,
    }


def encoder_of_folder(folder: Path) -> str | None:
    """`features_uni_v1` and `patch_features_uni_v1` name the encoder."""
    for prefix in ("patch_features_", "features_"):
        if folder.name.startswith(prefix) and len(folder.name) > len(prefix):
            return folder.name.removeprefix(prefix)
    return None


def one_encoder(file: ForeignFile, hints: LevelHints) -> str:
    """Which of the encoders whose features a file holds."""
    found = file.children("features")
    if hints.encoder is not None and hints.encoder in found:
        return hints.encoder
    if hints.encoder is None and len(found) == 1:
        return found[0]
    raise BagError(f"holds features of {', '.join(found)}", where=file.path, hint="Say which with --encoder")


def number(value: Any) -> float | None:
    """A finite positive number, or None for anything else (some tools write the string 'None')."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if np.isfinite(found) and found > 0 else None


def whole_number(value: Any) -> int | None:
    found = number(value)
    return None if found is None or found != int(found) else int(found)


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "None") else None
