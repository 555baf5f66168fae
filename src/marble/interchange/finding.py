"""Which file of a folder belongs to which slide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from marble.errors import BagError, InputError
from marble.interchange.layouts import encoder_of_folder, read_hdf5
from marble.interchange.slideflow import index_of, read_slideflow
from marble.interchange.tiles import LevelHints, Tiles, checked

HDF5_SUFFIXES = (".h5", ".hdf5")
PICKLE_SUFFIXES = (".pt", ".pth", ".pkl")
_SUFFIXES = (*HDF5_SUFFIXES, ".safetensors", ".npy", *PICKLE_SUFFIXES)  # the first that a slide has is taken


def parse_levels(levels: Sequence[str]) -> list[tuple[float, Path]]:
    """`10x:FOLDER` or `10:FOLDER`, one per level, as (magnification, folder), coarsest first."""
    found: list[tuple[float, Path]] = []
    for text in levels:
        number, colon, folder = text.partition(":")
        try:
            magnification = float(number.strip().lower().removesuffix("x"))
        except ValueError:
            magnification = 0.0
        if not colon or not 0 < magnification < 1000:
            raise InputError(f"level '{text}' is not MAGNIFICATION:FOLDER", hint="Write it like 10:features/10x")
        if not Path(folder).is_dir():
            raise InputError("no such folder", where=folder)
        found.append((magnification, Path(folder)))
    if len({magnification for magnification, _ in found}) != len(found) or not found:
        raise InputError("give every level once, each with a magnification of its own", where=", ".join(levels))
    return sorted(found, key=lambda level: level[0])


def find_features(folder: Path, encoder: str | None = None) -> dict[str, Path]:
    """Every slide's features file in a tool's output folder, by slide id (the file's stem)."""
    direct = _by_slide(folder.iterdir())
    if direct:
        return direct
    inside = _feature_folder(folder, encoder)
    found = _by_slide(inside.iterdir()) if inside is not None else _by_slide(folder.rglob("*.h5"))
    if not found:
        raise InputError(f"no features here ({', '.join(_SUFFIXES[:4])})", where=folder)
    return found


def read_level(path: Path, hints: LevelHints) -> Tiles:
    """One level of one slide, by the layout that its files have."""
    if path.suffix in PICKLE_SUFFIXES:
        raise BagError(
            f"a {path.suffix} file is a pickle, which can run any code when it is opened: it is not read",
            where=path,
            hint="Use the HDF5 files of the same tool (CLAM: h5_files), or export it to .npy or .safetensors",
        )
    slideflow = hints.layout == "slideflow" or path.suffix not in HDF5_SUFFIXES or index_of(path).is_file()
    return checked(read_slideflow(path, hints) if slideflow else read_hdf5(path, hints), hints, path)


def _by_slide(paths: Iterable[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(paths):
        if path.suffix not in _SUFFIXES or path.name.startswith(".") or not path.is_file():
            continue
        known = found.get(path.stem)
        if known is not None and known.suffix == path.suffix:
            raise InputError(f"two files of slide '{path.stem}': {known} and {path}", hint="Keep one of them")
        if known is None or _SUFFIXES.index(path.suffix) < _SUFFIXES.index(known.suffix):
            found[path.stem] = path
    return found


def _feature_folder(folder: Path, encoder: str | None) -> Path | None:
    """The folder inside a tool's output folder that holds the features."""
    named = [inside for inside in sorted(folder.iterdir()) if inside.is_dir() and encoder_of_folder(inside)]
    if encoder is not None and len(named) > 1:
        named = [inside for inside in named if encoder_of_folder(inside) == encoder]
    if len(named) > 1:
        names = ", ".join(inside.name for inside in named)
        raise InputError(f"features of several encoders: {names}", where=folder, hint="Give one of these folders")
    usual = [folder / name for name in ("h5_files", "features", "pt_files", "patches")]
    return next((inside for inside in (*named, *usual) if inside.is_dir()), None)
