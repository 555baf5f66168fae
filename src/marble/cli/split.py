"""`marble split`: patients into parts, or an audit of somebody's split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from marble.cli import paths


def split(
    cohort: Annotated[Path | None, typer.Argument(help="Cohort table (CSV, TSV).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the split files.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Audit this split file or folder instead of making splits.")
    ] = None,
    scheme: Annotated[str, typer.Option(help="holdout (80/10/10) or kfold (nested).")] = "holdout",
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    folds: Annotated[int, typer.Option(min=3)] = 5,
    seed: int = 0,
    by_site: Annotated[bool, typer.Option(help="Keep every hospital in one part.")] = False,
    task: Annotated[str | None, typer.Option(help="classification or survival, where the table has both.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the class.")] = None,
    event_coding: Annotated[
        str | None, typer.Option(help="1=event or 1=censored, where the format does not say.")
    ] = None,
    scored_by: Annotated[str, typer.Option(help="case; or slide, if slides of one patient differ in target.")] = "case",
) -> None:
    """Divide patients into train, validation and test; or audit somebody's split file with --check."""
    if cohort is not None:
        paths.existing_file(cohort, "table")
    if check is not None:
        paths.existing(check)
    if out is not None:
        paths.output_folder(out)
    from marble.cohorts import audit, holdout, kfold, read_cohort, write_splits
    from marble.errors import InputError
    from marble.specs import unknown_choice

    options: dict[str, Any] = {"task": task, "label": label, "event_coding": event_coding, "scored_by": scored_by}
    found = None if cohort is None else read_cohort(cohort, **options)
    if check is not None:
        result = audit(check, found)
        for line in result.lines():
            typer.echo(line)
        raise typer.Exit(1 if result.leaks else 0)
    if found is None or out is None:
        raise InputError("give a cohort table and --out, or --check FILE", hint="See `marble split --help`")
    typer.echo(found.summary())
    if scheme == "holdout":
        splits = holdout(found, repeats=repeats, seed=seed, by_site=by_site)
    elif scheme == "kfold":
        splits = kfold(found, folds=folds, repeats=repeats, seed=seed, by_site=by_site)
    else:
        raise InputError(unknown_choice("scheme", scheme, ["holdout", "kfold"]))
    for path in write_splits(splits, out, found):
        typer.echo(f"wrote {path}")
