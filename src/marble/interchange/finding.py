"""Which file of a folder belongs to which slide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marble.bags.record import file_stem, id_of_stem, is_shortened
from marble.errors import InputError, MarbleError
from marble.identifiers import slide_id_of
from marble.interchange import lazyslide
from marble.interchange.attributes import encoder_of_folder
from marble.interchange.hdf5 import open_foreign
from marble.interchange.layouts import read_hdf5
from marble.interchange.plain import PLAIN_SUFFIXES, read_plain
from marble.interchange.slideflow import index_of, read_slideflow
from marble.interchange.tiles import LevelHints, Tiles, checked
from marble.walking import below

HDF5_SUFFIXES = (".h5", ".hdf5")
_SUFFIXES = (*HDF5_SUFFIXES, *PLAIN_SUFFIXES, lazyslide.SUFFIX)  # the first that a slide has is taken


@dataclass
class Found:
    """The feature files of one level by slide, and the slides whose file is in doubt, with the reason."""

    files: dict[str, Path] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)


def parse_levels(levels: Sequence[str]) -> list[tuple[float, Path]]:
    """`10x:FOLDER` or `10:FOLDER`, one per level, as (magnification, folder), in the order given."""
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
    return found


def find_features(folder: Path, encoder: str | None = None) -> Found:
    """Every slide's features file in a tool's output folder, by slide id: its stem, as `file_stem` may have made it."""
    direct = _by_slide(folder.iterdir())
    if direct.files:
        return direct
    inside = _feature_folder(folder, encoder)
    found = (
        _by_slide(inside.iterdir())
        if inside is not None
        else _by_slide(path for path in below(folder) if path.suffix == ".h5")
    )
    if not found.files:
        raise InputError(f"no features here ({', '.join(_SUFFIXES)})", where=folder)
    return found


def check_readers(levels: Iterable[Found]) -> None:
    """Refuse at once if nothing can be read for want of a package."""
    files = [path for found in levels for path in found.files.values()]
    if all(path.suffix == lazyslide.SUFFIX for path in files):
        lazyslide.check_packages()


def read_level(path: Path, hints: LevelHints) -> Tiles:
    """One level of one slide, by the layout that its files have."""
    if hints.layout == "slideflow" or index_of(path).is_file():
        found = read_slideflow(path, hints)
    elif path.suffix in HDF5_SUFFIXES:
        found = read_hdf5(path, hints)
    elif path.suffix == lazyslide.SUFFIX:
        found = lazyslide.read_lazyslide(path, hints)
    else:
        found = read_plain(path, hints)
    return checked(found, hints, path)


def _by_slide(paths: Iterable[Path]) -> Found:
    found = Found()
    for path in sorted(paths):
        if path.suffix not in _SUFFIXES or path.name.startswith("."):
            continue
        slide_id = _slide_id(path)
        known = found.files.setdefault(slide_id, path)
        if not (path.is_dir() if path.suffix == lazyslide.SUFFIX else path.is_file()):
            wrong = "a folder" if path.is_dir() else "a file, not a store" if path.is_file() else None
            reason = wrong or "no file that can be read (a broken link?)"
            found.doubts[slide_id] = f"{path}: this is {reason}"
        elif known != path and known.suffix == path.suffix:
            found.doubts[slide_id] = f"two files of slide '{slide_id}', {known} and {path}: keep one of them"
        elif _SUFFIXES.index(path.suffix) < _SUFFIXES.index(known.suffix):
            found.files[slide_id] = path
    return found


def _slide_id(path: Path) -> str:
    """The id that a file's name holds; where that was too long for a name, the one that the file gives."""
    stem = slide_id_of(path)
    if is_shortened(stem) and path.suffix in HDF5_SUFFIXES:
        try:
            with open_foreign(path) as file:
                said = file.attributes().get("slide_id")
        except MarbleError:  # a damaged file gets its reason when its turn comes
            return stem
        if isinstance(said, str) and file_stem(said) == stem:
            return said
    return id_of_stem(stem)


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
