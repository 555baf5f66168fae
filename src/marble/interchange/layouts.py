"""One small reader per tool: where it keeps features, coordinates, and the size of its tiles.

Which reader fits is seen from the names in the file, in the order of `LAYOUTS`; the last one, `hdf5`, takes any file
with features and coordinates under a usual name. `LevelHints.layout` overrides the guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marble.errors import BagError, InputError
from marble.interchange.grids import pitch
from marble.interchange.hdf5 import Array, ForeignFile, open_foreign
from marble.interchange.tiles import LevelHints, Tiles

FEATURE_NAMES = ("features", "feats", "patch_embeddings")
COORDINATE_NAMES = ("coords", "coordinates")
_STAMP1_STRIDE = 224  # the first STAMP counted in pixels of tiles that are 224 px and 256 um wide
_STAMP1_UM = 256.0


@dataclass(frozen=True)
class FileLayout:
    """A tool's way to lay out an HDF5 file."""

    fits: Callable[[ForeignFile], bool]
    read: Callable[[ForeignFile, LevelHints], Tiles]


def read_hdf5(path: Path, hints: LevelHints) -> Tiles:
    """The tiles of one slide at one level, by whichever layout fits."""
    if hints.layout is not None and hints.layout not in LAYOUTS:
        raise InputError(f"unknown layout '{hints.layout}'", hint=f"Known: {', '.join((*LAYOUTS, 'slideflow'))}")
    with open_foreign(path) as file:
        name = hints.layout or next(name for name, layout in LAYOUTS.items() if layout.fits(file))
        return LAYOUTS[name].read(file, hints)


def _fits_trident(file: ForeignFile) -> bool:
    return "features" in file and "patch_size_level0" in file.attributes("coords")


def _read_trident(file: ForeignFile, _hints: LevelHints) -> Tiles:
    about = file.attributes("coords")
    named = text(file.attributes("features").get("encoder"))
    return Tiles(
        tool="trident",
        features=file.numbers("features"),
        xy=file.numbers("coords"),
        encoder=named or encoder_of_folder(file.path.parent),
        **grid_of(about),
    )


def _fits_atlaspatch(file: ForeignFile) -> bool:
    return "coords" in file and file.shape("coords")[1:] == (5,) and bool(file.children("features"))


def _read_atlaspatch(file: ForeignFile, hints: LevelHints) -> Tiles:
    encoder = _one_encoder(file, hints)
    coords = file.numbers("coords")  # (N, 5) x, y, width and height as read, level of the file
    return Tiles(
        tool="atlaspatch",
        features=file.numbers(f"features/{encoder}"),
        xy=coords[:, :2],
        encoder=encoder,
        **grid_of({**file.attributes("coords"), **file.attributes()}),
    )


def _fits_stamp(file: ForeignFile) -> bool:
    if "feats" not in file or "coords" not in file:
        return False
    about = file.attributes()
    if "stamp_version" in about or "tile_size_um" in about or {"tile_size", "unit"} <= set(about):
        return True
    if about or file.attributes("coords") or file.shape("coords")[1:] != (2,):
        return False
    step = pitch(file.numbers("coords").astype(np.float64))
    return step is not None and round(step) == _STAMP1_STRIDE


def _read_stamp(file: ForeignFile, _hints: LevelHints) -> Tiles:
    about = file.attributes()
    coords = file.numbers("coords").astype(np.float64)
    first = not about
    unit = "um" if first else str(about.get("unit", "um"))
    if unit not in ("um", "px"):
        raise BagError(f"unit '{unit}' is neither um nor px", where=file.path)
    return Tiles(
        tool="stamp",
        version="1" if first else text(about.get("stamp_version")),
        features=file.numbers("feats"),
        xy=coords * (_STAMP1_UM / _STAMP1_STRIDE) if first else coords,
        unit="px" if unit == "px" else "um",
        extent=_STAMP1_UM if first else number(about.get("tile_size_um", about.get("tile_size"))),
        tile_px=_STAMP1_STRIDE if first else whole_number(about.get("tile_size_px")),
        encoder=text(about.get("extractor")),
    )


def is_zoommil(file: ForeignFile) -> bool:
    """Whether the names of the datasets hold magnifications, as ZoomMIL's do."""
    return any(name.endswith("x_patches") and name.replace("x_patches", "x_coords") in file for name in file.datasets)


def _read_zoommil(file: ForeignFile, hints: LevelHints) -> Tiles:
    features, coords = (f"{hints.magnification:g}x_{what}" for what in ("patches", "coords"))
    if features not in file or coords not in file:
        raise BagError(f"no '{features}' and '{coords}' among {file.datasets}", where=file.path)
    rows = _row_and_column(file.numbers(coords), file.path)
    # Cells of this magnification's own grid, as um at the nominal pixel size: levels then nest by value.
    side = (hints.tile_px or 256) * 10 / hints.magnification
    return Tiles(
        tool="zoommil",
        features=file.numbers(features),
        xy=rows[:, ::-1] * side,
        unit="um",
        extent=side,
    )


def _row_and_column(values: Array, path: Path) -> Array:
    """(N, 2) from indices, or from names that begin with `row_column_`."""
    if values.dtype.kind != "S":
        return values[:, :2].astype(np.float64)
    try:
        return np.array([[int(part) for part in name.decode().split("_")[:2]] for name in values.ravel()], np.float64)
    except (ValueError, UnicodeDecodeError) as error:
        raise BagError(f"tile names do not begin with row_column: {error}", where=path) from None


def _fits_clam(file: ForeignFile) -> bool:
    return file.path.parent.name == "h5_files" or _companion(file.path) is not None


def _fits_anything(_file: ForeignFile) -> bool:
    return True


def _read_clam_or_generic(file: ForeignFile, hints: LevelHints) -> Tiles:
    """CLAM's features carry no attributes: those of its `patches` folder, or of a generic file's own, are used."""
    name, encoder = _feature_name(file, hints)
    coords = next((name for name in COORDINATE_NAMES if name in file), None)
    about = {**file.attributes(), **(file.attributes(coords) if coords else {})}
    xy = None if coords is None else file.numbers(coords)
    tool = "hdf5"
    companion = _companion(file.path)
    if companion is not None and grid_of(about).get("extent") is None:
        with open_foreign(companion) as beside:
            about = beside.attributes("coords")
            theirs = beside.numbers("coords")
        if xy is not None and not np.array_equal(np.unique(xy, axis=0), np.unique(theirs, axis=0)):
            raise BagError(f"coordinates differ from those in {companion}", where=file.path)
        xy = theirs if xy is None else xy
        tool = "trident" if "patch_size_level0" in about else "clam"
    elif file.path.parent.name == "h5_files":
        tool = "clam"
    if xy is None:
        raise BagError(
            f"no coordinates: none of {', '.join(COORDINATE_NAMES)} among {', '.join(file.datasets) or 'nothing'}",
            where=file.path,
            hint="Without coordinates no parents can be found; give a file that has them",
        )
    return Tiles(
        tool=tool,
        features=file.numbers(name),
        xy=xy,
        unit="um" if text(about.get("unit")) == "um" else "px",
        encoder=text(about.get("encoder")) or encoder or encoder_of_folder(file.path.parent),
        **grid_of(about),
    )


LAYOUTS: dict[str, FileLayout] = {
    "trident": FileLayout(_fits_trident, _read_trident),
    "atlaspatch": FileLayout(_fits_atlaspatch, _read_atlaspatch),
    "stamp": FileLayout(_fits_stamp, _read_stamp),
    "zoommil": FileLayout(is_zoommil, _read_zoommil),
    "clam": FileLayout(_fits_clam, _read_clam_or_generic),
    "hdf5": FileLayout(_fits_anything, _read_clam_or_generic),
}


def encoder_of_folder(folder: Path) -> str | None:
    """`features_uni_v1` and `patch_features_uni_v1` name the encoder."""
    for prefix in ("patch_features_", "features_"):
        if folder.name.startswith(prefix) and len(folder.name) > len(prefix):
            return folder.name.removeprefix(prefix)
    return None


def _companion(path: Path) -> Path | None:
    """The coordinates file that CLAM or TRIDENT keeps in a `patches` folder near the features."""
    folders = (path.parent / "patches", path.parent.parent / "patches", path.parent.parent.parent / "patches")
    names = (path.name, f"{path.stem}_patches.h5")
    beside = (folder / name for folder in folders for name in names)
    return next((found for found in beside if found.is_file() and found != path), None)


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


def _feature_name(file: ForeignFile, hints: LevelHints) -> tuple[str, str | None]:
    for name in FEATURE_NAMES:
        if name in file:
            return name, None
    if file.children("features"):
        encoder = _one_encoder(file, hints)
        return f"features/{encoder}", encoder
    raise BagError(
        f"no features: none of {', '.join(FEATURE_NAMES)} among {', '.join(file.datasets) or 'nothing'}",
        where=file.path,
        hint="Rename the dataset, or check that this is a file of features",
    )


def _one_encoder(file: ForeignFile, hints: LevelHints) -> str:
    found = file.children("features")
    if hints.encoder is not None and hints.encoder in found:
        return hints.encoder
    if hints.encoder is None and len(found) == 1:
        return found[0]
    raise BagError(f"holds features of {', '.join(found)}", where=file.path, hint="Say which with the option `encoder`")


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
