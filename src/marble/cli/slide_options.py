"""What the verbs that read slides have in common: their arguments, and how those become settings.

Every field of :class:`marble.extract.ExtractSpec` can be set: the usual ones by a flag, all of them by `--set` and in
the file of `--spec`. A flag wins over `--set`, `--set` over the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from marble.cli import terminal
from marble.cli.companions import goes_with
from marble.cli.repeated import refuse_again
from marble.cli.settings import from_file, key_values, merged
from marble.identifiers import IdFrom

if TYPE_CHECKING:
    from marble.extract import ExtractSpec


Sources = Annotated[list[Path], typer.Argument(help="Slide files, or folders that hold some.")]
Magnifications = Annotated[str | None, typer.Option(help="Nominal, comma-separated, coarsest first; 10 = 1 um/px.")]
Mpp = Annotated[str | None, typer.Option("--mpp", help="Pixel sizes in um instead of magnifications.")]
TilePx = Annotated[int | None, typer.Option(help="Side of a tile at its own level (256).", min=16, max=4096)]
Coverage = Annotated[str | None, typer.Option(help="Least share of tissue in a tile: one for all levels, or each.")]
Upsample = Annotated[bool | None, typer.Option(help="Allow a magnification the scan does not have; recorded.")]
EncoderName = Annotated[str | None, typer.Option(help="Name (lite0), or one for each level, comma-separated.")]
SpecFile = Annotated[Path | None, typer.Option("--spec", help="Settings file (TOML), as `extract.toml` in a store.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of any setting, as tissue.min_chroma=6.")]
MinSharpness = Annotated[
    float | None,
    typer.Option(help="Leave out finest tiles that are blurred: below this; 0.1 finds blur.", min=0, max=10),
]
MaxFold = Annotated[float | None, typer.Option(help="Most of a tile that may be folded (1 = any).", min=0, max=1)]
MaxPen = Annotated[float | None, typer.Option(help="Most of a tile that may be inked (1 = any).", min=0, max=1)]
MaxEdge = Annotated[float | None, typer.Option(help="Most of a tile outside the picture (1 = any).", min=0, max=1)]
MppCsv = Annotated[Path | None, typer.Option(help="Table wsi,mpp of pixel sizes that replace the files'.")]
Outlines = Annotated[Path | None, typer.Option(help="Folder of SLIDE.geojson tissue outlines to use instead.")]
IdsFrom = Annotated[IdFrom, typer.Option("--id-from", help="Slide ids: the file's stem, or its path below SOURCES.")]

# of the verbs that prepare a slide for a run
Weights = Annotated[list[str] | None, typer.Option(help="ENCODER=FILE: local weights (safetensors).")]
SlideMpp = Annotated[float | None, typer.Option("--mpp", help="um per pixel of the slide, in place of the file's.")]
SlideOutlines = Annotated[
    Path | None, typer.Option("--outlines", help="Tissue outlines: a GeoJSON file, or a folder of SLIDE.geojson.")
]
RunSpecFile = Annotated[
    Path | None, typer.Option("--spec", help="Extraction settings (TOML) for a run on bags that do not know theirs.")
]


class LatticeFlags(NamedTuple):
    """The flags about the lattice, as they were given; the same for every verb that reads slides."""

    magnifications: str | None = None
    mpp: str | None = None
    tile_px: int | None = None
    coverage: str | None = None
    allow_upsample: bool | None = None


class QualityFlags(NamedTuple):
    """The limits that a tile must keep to be used, as they were given."""

    min_sharpness: float | None = None
    max_fold: float | None = None
    max_pen: float | None = None
    max_edge: float | None = None


def settings(
    spec: Path | None,
    pairs: list[str] | None,
    lattice: LatticeFlags,
    encoder: str | None = None,
    quality: QualityFlags | None = None,
    **further: Any,
) -> dict[str, Any]:
    """The settings of an extraction, not yet checked; what was not given is left out."""
    from marble.errors import InputError

    body = merged(from_file(spec), key_values(pairs or []))
    pyramid: dict[str, Any] = {"tile_px": lattice.tile_px, "allow_upsample": lattice.allow_upsample}
    magnifications, mpp = lattice.magnifications, lattice.mpp
    if magnifications is not None and mpp is not None:
        raise InputError("give --magnifications or --mpp, and not both")
    if magnifications is not None or mpp is not None:
        pyramid |= {
            "magnifications": numbers(magnifications or "", "--magnifications"),
            "mpps": numbers(mpp or "", "--mpp"),
        }
    limits = {key: value for key, value in (quality or QualityFlags())._asdict().items() if value is not None}
    further |= {"quality": limits or None}
    given = {key: value for key, value in pyramid.items() if value is not None}
    body = merged(body, {"pyramid": given, **{key: value for key, value in further.items() if value is not None}})
    sizes = body["pyramid"].get("magnifications") or body["pyramid"].get("mpps")
    if not sizes:
        raise InputError("give --magnifications, for example 5,20, or --mpp, for example 2,0.5")
    if encoder is not None:
        body["encoders"] = tuple(name.strip() for name in encoder.split(","))
    if lattice.coverage is not None:
        shares = numbers(lattice.coverage, "--coverage")
        body["pyramid"]["coverage"] = shares * len(sizes) if len(shares) == 1 else shares
    return body


def pixel_sizes(table: Path | None, slides: Sequence[Path], *, private: bool = False) -> dict[str, float]:
    """The pixel sizes of `--mpp-csv`; rows that belong to none of the slides are named, since a typo loses a size.

    Of private slides they are only counted: the table calls slides by their files.
    """
    from marble.identifiers import printable
    from marble.slides.mpp import read_mpp_csv, unused_rows

    if table is None:
        return {}
    sizes = read_mpp_csv(table)
    unused = unused_rows(slides, sizes)
    if unused:
        named = terminal.few([printable(name) for name in unused])
        text = f"caution: {table}: no slide here for {len(unused)} of {len(sizes)} rows"
        text += "" if private else f": {named}"
        typer.secho(text, err=True, fg=typer.colors.YELLOW)
    return sizes


def extract_spec(body: dict[str, Any], spec: Path | None) -> ExtractSpec:
    """The checked settings."""
    from marble.extract import ExtractSpec

    return ExtractSpec.parse(body, where=spec)


def numbers(text: str, option: str) -> tuple[float, ...]:
    from marble.errors import InputError

    try:
        return tuple(float(part.strip().removesuffix("x")) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"'{text}' is not a list of numbers", where=option, hint="Write it like 5,20") from None


def preparing_flags(
    weights: list[str] | None, mpp: float | None, outlines: Path | None, spec: Path | None
) -> dict[str, bool]:
    """The flags that say how a slide is prepared, and whether each was given: a bag is prepared already."""
    settings = {"--mpp": mpp, "--outlines": outlines, "--spec": spec}
    return {"--weights": bool(weights)} | {flag: value is not None for flag, value in settings.items()}


def heard_by_slides(sources: Sequence[Path], given: Mapping[str, bool]) -> None:
    """Refuse flags about slide files where the sources are bags and stores alone."""
    from marble.preparing import holds_bags

    if all(holds_bags(source) for source in sources):
        goes_with("a slide file", given)


def weight_files(pairs: list[str] | None) -> dict[str, Path]:
    from marble.cli.paths import existing
    from marble.errors import InputError

    found = {}
    for pair in pairs or []:
        name, equals, path = pair.partition("=")
        if not equals:
            raise InputError(
                f"--weights '{pair}' is not ENCODER=FILE", hint="Write it like --weights uni_v1=uni.safetensors"
            )
        found[name] = existing(Path(path), "weights file")
    refuse_again("--weights", [pair.partition("=")[0] for pair in pairs or []])
    return found
