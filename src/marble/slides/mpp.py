"""The pixel size of a slide, in micrometres: where it may come from, and when it is refused.

Order: given by the user; the vendor's own fields or OME-XML; TIFF resolution tags; objective power (10x is 1 um/px by
convention). The first that is present decides: a present but absurd value is refused, never passed over for the next.
Where OME-XML and the tags of one file contradict each other, the file is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from marble.errors import SlideError
from marble.identifiers import normal, slide_id_of
from marble.magnification import mpp_at
from marble.tabular import read_table

MIN_MPP, MAX_MPP = 0.05, 20.0
MAX_ASPECT = 0.02
MAX_OBJECTIVE_CONTRADICTION = 2.0
MAX_CONTRADICTION = 1.05  # of two fields that both hold a length
_GIVE_IT = (
    "If you know the pixel size, give it with --mpp-csv (columns wsi,mpp), or with --mpp where `marble predict` or "
    "`marble heatmap` reads the slide"
)


Clue = tuple[str, str, str]  # (origin, x, y), as texts


@dataclass(frozen=True)
class PixelSize:
    """Micrometres per level-0 pixel, and where that number comes from."""

    mpp: float
    origin: str


@dataclass(frozen=True)
class PixelSizeClues:
    """What a file says: a text pair for each field present, in order of trust, and the objective's power."""

    fields: tuple[Clue, ...] = ()
    objective: str | None = None


def pixel_size(clues: PixelSizeClues, given: float | None, path: Path) -> PixelSize:
    """Decide on the pixel size of `path`, or refuse by name."""
    if given is not None:
        return PixelSize(_plausible(given, "given by the user", path), "given by the user")
    power = _number(clues.objective) if clues.objective is not None else None
    for origin, text_x, text_y in clues.fields:
        x, y = (_plausible(_number(text), origin, path) for text in (text_x, text_y))
        if abs(x - y) > MAX_ASPECT * min(x, y):
            raise _refused(f"pixels are not square: {x:g} x {y:g} um ({origin})", path)
        size = PixelSize((x + y) / 2, origin)
        _require_one_size(size, clues.fields, path)
        if power is not None and power > 0:
            _require_agreement(size, power, path)
        return size
    if power is not None:
        if not power > 0 or not math.isfinite(power):
            raise _refused(f"no pixel size, and the objective's power is '{clues.objective}'", path)
        origin = f"objective power {power:g} (nominal)"
        return PixelSize(_plausible(mpp_at(power), origin, path), origin)
    raise _refused("no pixel size: neither the vendor's fields, resolution tags nor an objective power", path)


def tiff_resolution(x: str | None, y: str | None, unit: str | None) -> Clue | None:
    """Resolution tags (pixels per unit) as a clue; None without a unit of length, which is how TIFF says unknown."""
    um_per_unit = {"centimeter": 10_000.0, "inch": 25_400.0}.get((unit or "").lower())
    if um_per_unit is None or x is None or y is None:
        return None
    return "tiff resolution tags", _inverse(x, um_per_unit), _inverse(y, um_per_unit)


def read_mpp_csv(path: str | Path) -> dict[str, float]:
    """Pixel sizes by slide from a table with the columns `wsi` (file name or stem) and `mpp`."""
    table = read_table(path)
    hint = "The table needs the columns wsi,mpp, for example `case-1.svs,0.2527`"
    wsi, mpp = table.require("wsi", hint), table.require("mpp", hint)
    sizes: dict[str, float] = {}
    for row in table.rows:
        name, value = normal(table.cell(row, wsi)), table.number(row, mpp)
        if not name:
            raise table.fault(row, wsi, "the slide's name is empty", "Fill it in, or remove the row")
        if name in sizes:
            raise table.fault(row, wsi, f"slide '{name}' occurs twice", "Keep one row for each slide")
        if value is None or not MIN_MPP <= value <= MAX_MPP:
            what = f"mpp '{table.cell(row, mpp)}' of slide '{name}' is not a number in {MIN_MPP} to {MAX_MPP:g}"
            raise table.fault(row, mpp, what, "Give um per pixel of the file's full resolution, such as 0.25")
        sizes[name] = value
    return sizes


def mpp_of(path: str | Path, sizes: Mapping[str, float]) -> float | None:
    """The row for this slide, by file name first, then by slide id, then by stem."""
    return next((sizes[name] for name in _names(Path(path)) if name in sizes), None)


def unused_rows(paths: Iterable[str | Path], sizes: Mapping[str, float]) -> list[str]:
    """Names in the table that are no slide's."""
    used = {name for path in paths for name in _names(Path(path))}
    return [name for name in sizes if name not in used]


def _names(file: Path) -> tuple[str, ...]:
    """What a table may call a slide: its file name, its id, its stem."""
    return normal(file.name), slide_id_of(file), normal(file.stem)


def _require_one_size(size: PixelSize, fields: Iterable[Clue], path: Path) -> None:
    """Refuse fields that contradict each other; one that is no scan's, as dots per inch of print, says nothing."""
    for origin, text, _ in fields:
        other = _number(text)
        if not MIN_MPP <= other <= MAX_MPP:
            continue
        if max(size.mpp / other, other / size.mpp) > MAX_CONTRADICTION:
            raise _refused(f"pixel size {size.mpp:g} um ({size.origin}) contradicts {other:g} um ({origin})", path)


def _require_agreement(size: PixelSize, power: float, path: Path) -> None:
    nominal = mpp_at(power)
    if max(size.mpp / nominal, nominal / size.mpp) > MAX_OBJECTIVE_CONTRADICTION:
        raise _refused(
            f"pixel size {size.mpp:g} um ({size.origin}) contradicts its objective power {power:g}, "
            f"which means about {nominal:g} um",
            path,
        )


def _plausible(value: float, origin: str, path: Path) -> float:
    if not math.isfinite(value) or not MIN_MPP <= value <= MAX_MPP:
        raise _refused(f"pixel size {value:g} um ({origin}) is outside {MIN_MPP} to {MAX_MPP:g}", path)
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _inverse(pixels_per_unit: str, um_per_unit: float) -> str:
    value = _number(pixels_per_unit)
    return repr(um_per_unit / value) if value else "inf"


def _refused(what: str, path: Path) -> SlideError:
    return SlideError(what, where=path, hint=_GIVE_IT)
