"""`tile`, `extract`, `import`, `export`, `verify`, `plan`: from slides, or other tools' features, to bags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marble.cli import show

if TYPE_CHECKING:
    from marble.slides.pyramid import PyramidSpec

Sources = Annotated[list[Path], typer.Argument(help="Slide files, or folders that hold some.")]
Magnifications = Annotated[str | None, typer.Option(help="Nominal, comma-separated; 10 = 1 um/px.")]
Mpp = Annotated[str | None, typer.Option("--mpp", help="Pixel sizes in um instead of magnifications.")]
TilePx = Annotated[int, typer.Option(help="Side of a tile at its own level.")]
Upsample = Annotated[bool, typer.Option(help="Allow a magnification the scan does not have; recorded.")]
MppCsv = Annotated[Path | None, typer.Option(help="Table wsi,mpp of pixel sizes that replace the files'.")]
Outlines = Annotated[Path | None, typer.Option(help="Folder of SLIDE.geojson tissue outlines to use instead.")]


def register(app: typer.Typer) -> None:
    for verb in (tile, extract, export, verify, plan):
        app.command()(verb)
    app.command(name="import")(import_)


def tile(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Folder for previews and tissue outlines.")],
    magnifications: Magnifications = None,
    mpp: Mpp = None,
    tile_px: TilePx = 256,
    allow_upsample: Upsample = False,
    mpp_csv: MppCsv = None,
    outlines: Outlines = None,
) -> None:
    """Find tissue and lay the lattice, without embedding: a picture and a GeoJSON file per slide."""
    from marble.compute import describe
    from marble.extract import find_slides
    from marble.extract.preview import write_preview

    spec = _pyramid(magnifications, mpp, tile_px, allow_upsample)
    found = find_slides(sources)
    sizes = _sizes(mpp_csv)
    failed, rows = [], []
    with show.progress("tiling", len(found)) as bar:
        for path in found:
            try:
                result = write_preview(
                    path, spec, out, mpp=sizes.get(path.name, sizes.get(path.stem)), outlines=outlines
                )
            except Exception as error:  # the other slides are still tiled
                failed.append((str(path), describe(error)))
                bar(f"{path.name}: failed")
            else:
                rows.append([path.name, result.tissue, *result.tiles, str(result.picture)])
                bar(path.name)
    if rows:
        levels = [f"level {k}" for k in range(len(rows[0]) - 3)]
        show.table("tiles", ["slide", "tissue", *levels, "preview"], rows)
    show.failures(failed)


def extract(
    sources: Sources,
    store: Annotated[Path, typer.Option(help="Bags go to STORE/<fingerprint of the settings>/.")],
    magnifications: Magnifications = None,
    mpp: Mpp = None,
    tile_px: TilePx = 256,
    encoder: Annotated[str, typer.Option(help="Name, or one for each level, comma-separated.")] = "lite0",
    weights: Annotated[list[str] | None, typer.Option(help="ENCODER=FILE: local weights (safetensors).")] = None,
    allow_download: Annotated[bool, typer.Option(help="Fetch weights that are not here.")] = False,
    device: str = "cpu",
    workers: Annotated[int, typer.Option(help="Slides side by side, in processes of their own.", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each; 0 takes every core.", min=0)] = 0,
    timeout: Annotated[float | None, typer.Option(help="Give up on a slide after this many seconds.")] = None,
    allow_upsample: Upsample = False,
    mpp_csv: MppCsv = None,
    manifest: Annotated[Path | None, typer.Option(help="sha256 list; a slide that differs is refused.")] = None,
    outlines: Outlines = None,
    hash_source: Annotated[bool, typer.Option("--hash", help="Put each slide's SHA-256 into its record.")] = False,
) -> None:
    """Slides -> bags: one nested lattice, every tile embedded, resumable. Start it again to go on."""
    from marble.compute import Executor, Inline, Processes
    from marble.extract import BatchProgress, ExtractSpec, Machine, extract_many, find_slides

    spec = ExtractSpec.parse(
        {
            "pyramid": _pyramid(magnifications, mpp, tile_px, allow_upsample),
            "encoders": tuple(encoder.split(",")),
        }
    )
    for caution in spec.cautions():
        typer.secho(f"caution: {caution}", err=True, fg=typer.colors.YELLOW)
    found = find_slides(sources)
    machine = Machine(device, threads, _weights(weights), allow_download)
    alone = workers == 1 and timeout is None
    executor: Executor = Inline() if alone else Processes(workers, timeout_s=timeout)
    with show.progress("extracting", len(found)) as bar:

        def tell(at: BatchProgress) -> None:
            bar(f"{at.last.slide_id}: {at.last.status}, {at.tiles_per_s:.0f} tiles/s, {_clock(at.seconds_left)} left")

        summary = extract_many(
            found,
            spec,
            store,
            executor=executor,
            machine=machine,
            mpp_csv=mpp_csv,
            manifest=manifest,
            outlines=outlines,
            hash_source=hash_source,
            on_slide=tell,
        )
    rows = [(o.slide_id, o.status, o.tiles, o.reason or "") for o in summary.outcomes]
    show.table(f"bags in {summary.store}", ["slide", "status", "tiles", "reason"], rows)
    show.failures([(str(o.path), str(o.reason)) for o in summary.outcomes if o.status == "failed"])


def import_(
    level: Annotated[list[str] | None, typer.Option(help="MAGNIFICATION:FOLDER of features, once per level.")] = None,
    store: Annotated[Path | None, typer.Option(help="Store for the bags.")] = None,
    policy: Annotated[str, typer.Option(help="Fine tiles without a parent: drop or nearest.")] = "drop",
    audit: Annotated[Path | None, typer.Option(help="Where the audit table goes (default: STORE/audit.csv).")] = None,
    extents: Annotated[str | None, typer.Option(help="Tile sides in level-0 px, by level, if unknown.")] = None,
    tile_px: Annotated[int | None, typer.Option(help="Side of the tiles as encoded, if unknown.")] = None,
    slide_mpp: Annotated[float | None, typer.Option(help="Pixel size of the scans, for coordinates in um.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Name of the encoder, if the files do not say.")] = None,
    units: Annotated[str | None, typer.Option(help="Of the coordinates: px or um.")] = None,
    anchor: Annotated[str | None, typer.Option(help="Of the coordinates: top-left or centre.")] = None,
    layout: Annotated[str | None, typer.Option(help="Tool that wrote the files, if not recognised.")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Instead of features: weights (.pt, .pth, .ckpt) trained with the original code."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Of the checkpoint: name of the model.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Of the checkpoint: KEY=VALUE of the model's options.")
    ] = None,
    dim: Annotated[
        int | None, typer.Option(help="Of the checkpoint: width of the tokens, if it does not show.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Of the checkpoint: the safetensors file to write.")] = None,
) -> None:
    """Other tools' features -> bags with parents, and an audit of the grids. Or: an original checkpoint -> safetensors.

    Features come from TRIDENT, CLAM, STAMP, Slideflow and others (--level, --store); a checkpoint from the original
    repository of one of the models (--checkpoint, --model, --out).
    """
    from marble.bags.foreign import import_levels
    from marble.compute import Processes
    from marble.errors import InputError

    of_features = _given(
        level=level, store=store, policy=None if policy == "drop" else policy, audit=audit, extents=extents,
        tile_px=tile_px, slide_mpp=slide_mpp, encoder=encoder, units=units, anchor=anchor, layout=layout,
    )  # fmt: skip
    of_checkpoint = _given(checkpoint=checkpoint, model=model, set=settings, dim=dim, out=out)
    if of_features and of_checkpoint:
        raise InputError(
            f"{of_features[0]} belongs to an import of features, {of_checkpoint[0]} to that of a checkpoint",
            hint="Import one at a time",
        )
    if checkpoint and model and out:
        _import_checkpoint(checkpoint, model, settings or [], dim, out)
        return
    if of_checkpoint:
        raise InputError("a checkpoint is imported with --checkpoint, --model and --out, all three")
    if not level or not store:
        raise InputError("give --level and --store to import features, or --checkpoint, --model and --out for weights")
    result = import_levels(
        level,
        store,
        policy=policy,
        audit_path=audit or store / "audit.csv",
        tell=typer.echo,
        extents=None if extents is None else _numbers(extents),
        tile_px=tile_px,
        slide_mpp=slide_mpp,
        encoder=encoder,
        units=units,
        anchor=anchor,
        layout=layout,
        executor=Processes(1, timeout_s=300),  # a file that hangs or kills the HDF5 library costs only itself
    )
    typer.echo(result.verdict())
    typer.echo(f"audit: {result.audit_path}")
    show.failures(result.failed)


def _given(**options: object) -> list[str]:
    """Names of the options that were given, as they are typed."""
    return [f"--{name.replace('_', '-')}" for name, value in options.items() if value not in (None, [])]


def _import_checkpoint(checkpoint: Path, model: str, settings: list[str], dim: int | None, out: Path) -> None:
    from marble.models.checkpoint_import import import_checkpoint

    done = import_checkpoint(checkpoint, model, out, dim=dim, **_options(settings))
    if done.taken_off:
        typer.echo(f"taken off the names: {', '.join(done.taken_off)}")
    if done.left_out:
        typer.echo(f"not weights, left out: {', '.join(done.left_out)}")
    typer.echo(
        f"{model}: {done.tensors} tensors, {done.model.parameter_count():,} parameters, tokens {done.model.dim} wide, "
        f"{done.model.outputs} outputs; every tensor found its place"
    )
    typer.echo(f"wrote {done.path}")


def _options(settings: list[str]) -> dict[str, Any]:
    """KEY=VALUE of the command line; a value is what TOML makes of it, or a word."""
    import tomllib

    from marble.errors import InputError

    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"--set '{setting}' is not KEY=VALUE", hint="Write it like --set gated=false")
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    return found


def export(
    store: Annotated[Path, typer.Argument(help="A store of bags.")],
    out: Annotated[Path, typer.Option(help="Folder for TRIDENT-shaped HDF5 files, one folder per level.")],
) -> None:
    """Bags -> HDF5 per level, as TRIDENT writes it, so that every tool downstream reads our levels."""
    from marble.bags.foreign import export_store

    for path in export_store(store, out):
        typer.echo(f"wrote {path}")


def verify(target: Annotated[Path, typer.Argument(help="A store, a run, or a folder of runs.")]) -> None:
    """Hash everything again and name each fault. Exit code 1 if there is one."""
    from marble.verify import verify_path

    result = verify_path(target)
    for fault in result.faults:
        typer.secho(f"fault: {fault}", err=True, fg=typer.colors.RED)
    typer.echo(f"{result.checked} checked, {len(result.faults)} faults")
    raise typer.Exit(1 if result.faults else 0)


def plan(
    sources: Sources,
    magnifications: Magnifications = None,
    mpp: Mpp = None,
    tile_px: TilePx = 256,
    encoder: str = "lite0",
    mpp_csv: MppCsv = None,
) -> None:
    """How many tiles, how many bytes and how long, before you start."""
    from marble.extract import ExtractSpec, find_slides
    from marble.extract import plan as estimate

    spec = ExtractSpec.parse(
        {"pyramid": _pyramid(magnifications, mpp, tile_px, False), "encoders": tuple(encoder.split(","))}
    )
    cost = estimate(find_slides(sources), spec, mpps=_sizes(mpp_csv))
    typer.echo(f"{cost.slides} slides, {cost.sampled} of them looked at")
    levels = ", ".join(f"level {k}: {count:,}" for k, count in enumerate(cost.tiles))
    typer.echo(f"tiles: {levels}")
    typer.echo(f"bags: {cost.bytes / 2**30:.2f} GiB; time with one process here: {_clock(cost.seconds)}")
    for path, reason in cost.unusable:
        typer.secho(f"will not give a bag: {path}: {reason}", err=True, fg=typer.colors.YELLOW)


def _pyramid(magnifications: str | None, mpp: str | None, tile_px: int, allow_upsample: bool) -> PyramidSpec:
    from marble.errors import InputError
    from marble.slides.pyramid import PyramidSpec

    if (magnifications is None) == (mpp is None):
        raise InputError("give --magnifications, for example 5,20, or --mpp, for example 2,0.5")
    values = _numbers(magnifications or mpp or "")
    key = "magnifications" if magnifications is not None else "mpps"
    settings: dict[str, Any] = {key: values, "tile_px": tile_px, "allow_upsample": allow_upsample}
    return PyramidSpec.parse(settings, where="--magnifications" if magnifications else "--mpp")


def _numbers(text: str) -> tuple[float, ...]:
    from marble.errors import InputError

    try:
        return tuple(float(part.strip().removesuffix("x")) for part in text.split(","))
    except ValueError:
        raise InputError(f"'{text}' is not a list of numbers", hint="Write it like 5,20") from None


def _sizes(mpp_csv: Path | None) -> dict[str, float]:
    from marble.slides.mpp import read_mpp_csv

    return {} if mpp_csv is None else dict(read_mpp_csv(mpp_csv))


def _weights(pairs: list[str] | None) -> dict[str, Path]:
    from marble.errors import InputError

    found = {}
    for pair in pairs or []:
        name, equals, path = pair.partition("=")
        if not equals:
            raise InputError(f"--weights '{pair}' is not ENCODER=FILE")
        found[name] = Path(path)
    return found


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
