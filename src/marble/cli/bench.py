"""`marble bench`: speed and memory as ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths
from marble.cli.cluster_options import Ray, WorkerCpus, WorkerGpus, Workers, side_by_side

BENCHES = ("model", "mixers", "routing", "zoo", "train", "extract", "learning", "recipe", "device", "cluster")
PEERS = ("torchmil",)


def bench(
    what: Annotated[str, typer.Argument(help=" | ".join(BENCHES))],
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
    quick: Annotated[bool, typer.Option(help="Smaller sizes and fewer repeats.")] = False,
    device: Annotated[str, typer.Option(help="For `bench device`: auto, cpu, cuda, cuda:N or mps.")] = "cpu",
    against: Annotated[
        str | None, typer.Option(help="For `bench zoo`: another package's classes of the same papers: torchmil.")
    ] = None,
    slide: Annotated[Path | None, typer.Option(help="A real slide for `bench extract`.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Bags and labels.csv that `bench learning`, `recipe` and `routing` compose cohorts of."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where `bench learning`, `recipe` and `routing` keep their runs.")
    ] = None,
    workers: Workers = None,
    ray: Ray = None,
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
) -> None:
    """Speed and memory as ratios against peers and limits, measured in one process."""
    from importlib import import_module

    from marble.errors import InputError
    from marble.specs import unknown_choice

    if what not in BENCHES:
        raise InputError(unknown_choice("benchmark", what, list(BENCHES)))
    if against is not None and what != "zoo":
        raise InputError(f"`bench {what}` has no peers", where="--against", hint="Use `marble bench zoo`")
    if against is not None and against not in PEERS:
        raise InputError(unknown_choice("peer", against, list(PEERS)), where="--against")
    if json is not None:
        paths.output_file(json, "--json")
    if slide is not None:
        paths.existing_file(slide, "slide")
        from marble.slides.slide import Slide

        Slide.open(slide).close()  # refused now, not after minutes of measuring
    from marble import devices
    from marble.memory import keep_freed

    where = devices.choose(device)
    if what != "device" and where.type != "cpu":
        raise InputError(f"`bench {what}` measures the CPU", where="--device", hint="Use `marble bench device`")
    options: dict[str, object] = {"slide": slide} if what == "extract" else {}
    if what == "device":
        options = {"device": str(where)}
    if what == "routing":
        options = {"data": data, "out": out}
    if what in ("learning", "recipe"):
        executor = side_by_side(ray, workers, worker_cpus, worker_gpus)
        options = {"data": data, "out": out, "executor": executor}
    elif ray is not None or workers is not None:
        raise InputError(f"`bench {what}` measures one process", hint="Leave out --ray and --workers")
    if against is not None:
        what, options = "zoo_peers", {"against": against}
    keep_freed()  # as fits do
    import_module(f"marble.benchmarks.{what}").run(json_path=json, quick=quick, **options)
