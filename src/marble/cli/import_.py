"""`marble import`: other tools' features to bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli import paths, terminal
from marble.cli.cluster_options import Ray, WorkerCpus, Workers, cluster
from marble.cli.companions import workers_go_with_ray
from marble.cli.slide_options import numbers
from marble.storage import PLACE, location

#: seconds after which a file of features is given up
FILE_S = 300.0


def import_(
    level: Annotated[list[str], typer.Option(help="MAGNIFICATION:FOLDER of features, once per level.")],
    store: Annotated[Path, typer.Option(parser=location, metavar=PLACE, help="Store for the bags.")],
    policy: Annotated[str, typer.Option(help="Fine tiles without a parent: drop or nearest.")] = "drop",
    audit: Annotated[Path | None, typer.Option(help="Where the audit table goes (default: STORE/audit.csv).")] = None,
    extents: Annotated[str | None, typer.Option(help="Tile sides in level-0 px, by level, if unknown.")] = None,
    tile_px: Annotated[int | None, typer.Option(help="Side of the tiles as encoded, if unknown.")] = None,
    slide_mpp: Annotated[float | None, typer.Option(help="Pixel size of the scans, for coordinates in um.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Name of the encoder, if the files do not say.")] = None,
    units: Annotated[str | None, typer.Option(help="Of the coordinates: px or um.")] = None,
    anchor: Annotated[str | None, typer.Option(help="Of the coordinates: top-left or centre.")] = None,
    layout: Annotated[str | None, typer.Option(help="Tool that wrote the files, if not recognised.")] = None,
    no_coordinates: Annotated[
        bool, typer.Option("--no-coordinates", help="One level without places, for models that read none.")
    ] = False,
    workers: Workers = None,
    ray: Ray = None,
    worker_cpus: WorkerCpus = 1,
) -> None:
    """Features of TRIDENT, CLAM, STAMP, Slideflow and others -> bags with parents, and an audit of their grids."""
    workers_go_with_ray(ray, worker_cpus)
    sides = None if extents is None else numbers(extents, "--extents")
    for text in level:
        if ":" in text:
            paths.existing(Path(text.partition(":")[2]), "folder of features")
    paths.output_folder(store, "--store")
    if audit is not None:
        paths.own_table(audit, "slide_id,level,", "--audit")
    from marble.compute import Executor, Processes
    from marble.interchange import ImportSpec, import_levels

    said: dict[str, Any] = {
        "policy": policy, "extents": sides, "tile_px": tile_px, "slide_mpp": slide_mpp, "encoder": encoder,
        "units": units, "anchor": anchor, "layout": layout, "no_coordinates": no_coordinates,
    }  # fmt: skip
    executor: Executor
    if ray is not None:
        executor = cluster(ray, workers, worker_cpus, 0, FILE_S)
    else:  # a file that hangs or kills the HDF5 library costs only itself
        executor = Processes(workers or 1, timeout_s=FILE_S)
    result = import_levels(
        level,
        store,
        ImportSpec(**said),
        audit_path=audit,
        tell=typer.echo,
        executor=executor,
    )
    typer.echo(result.verdict())
    typer.echo(f"audit: {result.audit_path}")
    terminal.failures([*result.failed, *result.odd])
