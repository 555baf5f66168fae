"""`demo`, `doctor`, `bench`: does it work here, and how well."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import show

BENCHES = ("model", "zoo", "train", "extract")


def register(app: typer.Typer) -> None:
    for verb in (demo, doctor, bench):
        app.command()(verb)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo-out"),
    workers: Annotated[int, typer.Option(help="Processes that work side by side.", min=1)] = 2,
) -> None:
    """Made-up slides -> bags -> trained models -> report, in a few minutes, with nothing downloaded."""
    from marble.demo import run_demo

    for line in run_demo(out, workers):
        typer.echo(line)


def doctor() -> None:
    """What works on this machine, and what to do about the rest. Exit code 1 if something essential is missing."""
    from marble.doctor import examine

    findings = examine()
    marks = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fault": "[red]fault[/]"}
    rows = [(finding.what, marks[finding.state], finding.detail, finding.advice) for finding in findings]
    show.table("marble doctor", ["what", "state", "found", "what to do"], rows)
    if any(finding.state == "fault" for finding in findings):
        raise typer.Exit(1)


def bench(
    what: Annotated[str, typer.Argument(help=" | ".join(BENCHES))],
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
    quick: Annotated[bool, typer.Option(help="Smaller sizes and fewer repeats.")] = False,
    slide: Annotated[Path | None, typer.Option(help="A real slide for `bench extract`.")] = None,
) -> None:
    """Speed and memory as ratios against peers and limits, measured in one process."""
    from importlib import import_module

    from marble.errors import InputError
    from marble.specs import unknown_choice

    if what not in BENCHES:
        raise InputError(unknown_choice("benchmark", what, list(BENCHES)))
    options = {"slide": slide} if what == "extract" else {}
    import_module(f"marble.benchmarks.{what}").run(json_path=json, quick=quick, **options)
