"""`marble doctor`: what works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths, terminal


def doctor(
    everything: Annotated[
        bool, typer.Option("--all", help="A line for everything, not only for what matters.")
    ] = False,
    sbom: Annotated[Path | None, typer.Option(help="Write what is installed as CycloneDX JSON to this file.")] = None,
) -> None:
    """What works on this machine, and what to do about the rest. Exit code 1 if something essential is missing."""
    if sbom is not None:
        from marble.sbom import write_sbom

        typer.echo(f"wrote {write_sbom(paths.output_file(sbom, '--sbom'))}")
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
