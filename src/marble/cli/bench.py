"""`marble bench`: speed and memory as ratios."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths
from marble.cli.cluster_options import Ray, WorkerCpus, WorkerGpus, Workers, side_by_side
from marble.cli.companions import workers_go_with_ray

BENCHES = ("model", "mixers", "orders", "routing", "zoo", "train", "extract", "learning", "recipe", "device", "cluster")
PEERS = ("torchmil",)
#: which benchmarks hear what some of the flags say
HEARD = {
    "--slide": ("extract", "routing"),
    "--data": ("learning", "recipe", "routing"),
    "--out": ("learning", "recipe", "routing", "orders"),
    "--signals": ("learning", "recipe"),
    "--strengths": ("learning",),
    "--candidates": ("recipe",),
    "--seeds": ("learning", "recipe"),
    "--no-peers": ("learning",),
}


def bench(
    what: Annotated[str, typer.Argument(help=" | ".join(BENCHES))],
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
    quick: Annotated[bool, typer.Option(help="Smaller sizes and fewer repeats.")] = False,
    device: Annotated[str, typer.Option(help="For `bench device`: auto, cpu, cuda, cuda:N or mps.")] = "cpu",
    against: Annotated[
        str | None, typer.Option(help="For `bench zoo`: another package's classes of the same papers: torchmil.")
    ] = None,
    slide: Annotated[Path | None, typer.Option(help="A real slide for `bench extract` and `routing`.")] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Bags and labels.csv that `bench learning`, `recipe` and `routing` compose cohorts of; `routing` also "
            "takes them as they are, and takes several."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where `bench learning`, `recipe`, `routing` and `orders` keep their runs.")
    ] = None,
    signals: Annotated[
        str | None, typer.Option(help="Some of the signals of `bench learning`, with commas: cross-scale,survival.")
    ] = None,
    strengths: Annotated[
        str | None, typer.Option(help="Some of the strengths of `bench learning`: weak,middle,strong.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of `bench learning` and `recipe`: 0,1,2.")] = None,
    candidates: Annotated[
        str | None, typer.Option(help="Some of the candidates of `bench recipe`, compared with the first: base,probe.")
    ] = None,
    peers: Annotated[bool, typer.Option(help="Whether `bench learning` also takes the other models.")] = True,
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
    workers_go_with_ray(ray, worker_cpus, worker_gpus)
    _refuse_unheard(
        what,
        {
            "--slide": slide is not None, "--data": bool(data), "--out": out is not None,
            "--signals": signals is not None, "--strengths": strengths is not None,
            "--candidates": candidates is not None, "--seeds": seeds is not None, "--no-peers": not peers,
        },
    )  # fmt: skip
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
    options = _options(what, str(where), slide, data or [], out)
    if what in ("learning", "recipe"):
        options |= _cohorts(what, signals, strengths, candidates, seeds, peers)
        options["executor"] = side_by_side(ray, workers, worker_cpus, worker_gpus)
    elif ray is not None or workers is not None:
        raise InputError(f"`bench {what}` measures one process", hint="Leave out --ray and --workers")
    if against is not None:
        what, options = "zoo_peers", {"against": against}
    keep_freed()  # as fits do
    import_module(f"marble.benchmarks.{what}").run(json_path=json, quick=quick, **options)


def _refuse_unheard(what: str, given: Mapping[str, bool]) -> None:
    """Refuse the flags that this benchmark would not look at."""
    from marble.errors import InputError

    for flag, was_given in given.items():
        if was_given and what not in HEARD[flag]:
            hint = f"It is for {', '.join(f'`bench {name}`' for name in HEARD[flag])}; leave it out"
            raise InputError(f"`bench {what}` does not look at {flag}", hint=hint)


def _cohorts(
    what: str,
    signals: str | None,
    strengths: str | None,
    candidates: str | None,
    seeds: str | None,
    peers: bool,
) -> dict[str, object]:
    """Which composed cohorts are asked for, and who is trained on them, where not all are."""
    from marble.benchmarks.recipe import CANDIDATES
    from marble.errors import InputError
    from marble.specs import unknown_choice
    from marble.synthetic.composed import SIGNALS, STRENGTHS

    chosen: dict[str, object] = {}
    choices = (
        ("signals", signals, SIGNALS),
        ("strengths", strengths, STRENGTHS),
        ("candidates", candidates, tuple(CANDIDATES)),
    )
    for flag, said, known in choices:
        if said is None:
            continue
        names = tuple(name.strip() for name in said.split(","))
        for name in names:
            if name not in known:
                raise InputError(unknown_choice(flag.removesuffix("s"), name, list(known)), where=f"--{flag}")
        chosen[flag] = names
    if seeds is not None:
        if not all(seed.strip().isdigit() for seed in seeds.split(",")):
            raise InputError(f"'{seeds}' are not whole numbers", where="--seeds", hint="Write them as 0,1,2")
        chosen["seeds"] = tuple(int(seed) for seed in seeds.split(","))
    return chosen | ({"peers": peers} if what == "learning" else {})


def _options(what: str, device: str, slide: Path | None, data: list[Path], out: Path | None) -> dict[str, object]:
    """What a benchmark is given beside `json_path` and `quick`."""
    from marble.errors import InputError

    if what in ("learning", "recipe"):
        if len(data) > 1:
            raise InputError(f"`bench {what}` composes cohorts of one folder", where="--data")
        return {"data": data[0] if data else None, "out": out}
    given: dict[str, dict[str, object]] = {
        "device": {"device": device},
        "extract": {"slide": slide},
        "routing": {"slide": slide, "data": data, "out": out},
        "orders": {"out": out},
    }
    return given.get(what, {})
