"""What the verbs that read slides have in common: their arguments, and how those become settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from marble.slides.lattice import PyramidSpec

Sources = Annotated[list[Path], typer.Argument(help="Slide files, or folders that hold some.")]
Magnifications = Annotated[str | None, typer.Option(help="Nominal, comma-separated; 10 = 1 um/px.")]
Mpp = Annotated[str | None, typer.Option("--mpp", help="Pixel sizes in um instead of magnifications.")]
TilePx = Annotated[int, typer.Option(help="Side of a tile at its own level.")]
Upsample = Annotated[bool, typer.Option(help="Allow a magnification the scan does not have; recorded.")]
MppCsv = Annotated[Path | None, typer.Option(help="Table wsi,mpp of pixel sizes that replace the files'.")]
Outlines = Annotated[Path | None, typer.Option(help="Folder of SLIDE.geojson tissue outlines to use instead.")]


def pyramid_spec(magnifications: str | None, mpp: str | None, tile_px: int, allow_upsample: bool) -> PyramidSpec:
    from marble.errors import InputError
    from marble.slides.lattice import PyramidSpec

    if (magnifications is None) == (mpp is None):
        raise InputError("give --magnifications, for example 5,20, or --mpp, for example 2,0.5")
    values = numbers(magnifications or mpp or "")
    key = "magnifications" if magnifications is not None else "mpps"
    settings: dict[str, Any] = {key: values, "tile_px": tile_px, "allow_upsample": allow_upsample}
    return PyramidSpec.parse(settings, where="--magnifications" if magnifications else "--mpp")


def numbers(text: str) -> tuple[float, ...]:
    from marble.errors import InputError

    try:
        return tuple(float(part.strip().removesuffix("x")) for part in text.split(","))
    except ValueError:
        raise InputError(f"'{text}' is not a list of numbers", hint="Write it like 5,20") from None


def pixel_sizes(mpp_csv: Path | None) -> dict[str, float]:
    from marble.slides.mpp import read_mpp_csv

    return {} if mpp_csv is None else dict(read_mpp_csv(mpp_csv))


def weight_files(pairs: list[str] | None) -> dict[str, Path]:
    from marble.errors import InputError

    found = {}
    for pair in pairs or []:
        name, equals, path = pair.partition("=")
        if not equals:
            raise InputError(f"--weights '{pair}' is not ENCODER=FILE")
        found[name] = Path(path)
    return found


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
