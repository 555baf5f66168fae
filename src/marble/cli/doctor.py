"""`marble doctor`: what works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths, terminal
from marble.cli.companions import goes_with


def doctor(
    everything: Annotated[
        bool, typer.Option("--all", help="A line for everything, not only for what matters.")
    ] = False,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Compare --device with the CPU: outputs, gradients, a resumed fit, times.")
    ] = False,
    device: Annotated[str, typer.Option(help="With --gpu: auto, cpu, cuda, cuda:N or mps.")] = "auto",
    json: Annotated[Path | None, typer.Option(help="With --gpu: also write the figures to this file.")] = None,
    quick: Annotated[bool, typer.Option(help="With --gpu: small sizes only.")] = False,
    sbom: Annotated[Path | None, typer.Option(help="Write what is installed as CycloneDX JSON to this file.")] = None,
) -> None:
    """What works on this machine, and what to do about the rest. Exit code 1 if something essential is missing."""
    if not gpu:
        goes_with("--gpu", {"--device": device != "auto", "--json": json is not None, "--quick": quick})
    if sbom is not None:
        from marble.sbom import write_sbom

        typer.echo(f"wrote {write_sbom(paths.output_file(sbom, '--sbom'))}")
        return
    if gpu:
        _compare_device(device, json, quick)
        return
    from marble.doctor import examine, summarise

    checks = examine()
    shown = checks if everything else summarise(checks)
    marks = {"ok": "ok", "note": "note", "fault": "FAULT"}
    rows = [(check.what, marks[check.state], check.detail, check.advice) for check in shown]
    terminal.table("", ["what", "state", "found", "what to do"], rows, lean=True)
    if not everything:
        typer.echo("`marble doctor --all` shows every line")
    if any(check.state == "fault" for check in checks):
        raise typer.Exit(1)


def _compare_device(device: str, json: Path | None, quick: bool) -> None:
    from marble.devices import choose, no_gpu_because

    where = choose(device)
    if device == "auto" and where.type == "cpu":
        typer.echo(f"torch finds no GPU here: {no_gpu_because()}. Everything runs on the CPU.")
        typer.echo("`marble doctor --gpu --device cpu` tries the comparison itself, with the CPU in the GPU's place")
        if json is not None:
            typer.echo(f"{json} was not written")
        return
    if json is not None:
        paths.output_file(json, "--json")
    from marble.benchmarks.device import run

    if not run(json_path=json, quick=quick, device=str(where))["right"]:
        raise typer.Exit(1)
