"""What the verbs that can work on a cluster have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from marble.compute import Cluster, Executor

Workers = Annotated[
    int | None, typer.Option(help="How many work side by side: 1, or on a cluster as many as fit.", min=1)
]
Ray = Annotated[str | None, typer.Option("--ray", help="Work on a Ray cluster: auto, or its address.")]
WorkerCpus = Annotated[float, typer.Option(help="Cores of a worker on the cluster.", min=0.01)]
WorkerGpus = Annotated[float, typer.Option(help="GPUs of a worker on the cluster; 0.25 lets four share one.", min=0)]


def cluster(address: str, workers: int | None, cpus: float, gpus: float, timeout_s: float | None = None) -> Cluster:
    """The executor that `--ray` asks for."""
    from marble.compute import Cluster

    return Cluster(address, workers, cpus, gpus, timeout_s)


def side_by_side(ray: str | None, workers: int | None, cpus: float, gpus: float, threads: int = 1) -> Executor:
    """Where items run that need no protection from one another: here, in processes, or on a cluster."""
    from marble.compute import Inline, Processes

    if ray is not None:
        return cluster(ray, workers, cpus, gpus)
    return Inline() if workers in (None, 1) else Processes(workers, threads_per_worker=threads)
