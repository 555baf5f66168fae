"""`marble doctor`: what works on this machine."""

from __future__ import annotations

import typer

from marble.cli import terminal


def doctor() -> None:
    """What works on this machine, and what to do about the rest. Exit code 1 if something essential is missing."""
    from marble.doctor import examine

    findings = examine()
    marks = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fault": "[red]fault[/]"}
    rows = [(finding.what, marks[finding.state], finding.detail, finding.advice) for finding in findings]
    terminal.table("marble doctor", ["what", "state", "found", "what to do"], rows)
    if any(finding.state == "fault" for finding in findings):
        raise typer.Exit(1)
